"""A session: one model version, runnable, shared by all its instances."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from brisk.errors import ArtefactError, InvalidModelError
from brisk.execution import Frame, LoadedProgram
from brisk.execution.artefact import find_artefact
from brisk.execution.lanes import Lanes
from brisk.execution.segment_source import SegmentSource
from brisk.execution.starting import StartingProgram, start_program
from brisk.execution.table import GiveWay
from brisk.execution.threads import ThreadChoice
from brisk.execution.warming import is_settled
from brisk.exits.serving import ExitingFrame
from brisk.exits.versions import latest
from brisk.graph.program import Container, Program, Variable
from brisk.runtime.early_exits import SessionCaches
from brisk.segments.engine import Engine
from brisk.solutions.base import Value
from brisk.wire.datatypes import BY_ELEMENT_NAME


@dataclass(frozen=True, slots=True)
class Session:
    """``summary`` is one line for the log; ``load_ns`` what it took until it could run.

    Its layers are loaded by lanes from then on, or by the first request where it is faster.
    ``threads`` is the worker's main thread's alone.
    """

    path: Path
    starting: StartingProgram
    lanes: Lanes
    load_ns: int
    summary: str
    threads: ThreadChoice
    caches: SessionCaches

    @property
    def loaded(self) -> LoadedProgram:
        return self.starting.loaded

    @property
    def is_loading(self) -> bool:
        """Whether lanes still load layers of it."""
        return self.starting.table.is_loading

    @property
    def is_settled(self) -> bool:
        """Whether its kernels stay as they are, until learned caches want other boundaries."""
        return is_settled(self.starting)

    def start(
        self,
        inputs: Mapping[str, Value],
        requested: Sequence[str],
        agreement: float | None = None,
    ) -> Frame | ExitingFrame:
        """A new frame. Raises InvalidRequestError where the inputs do not fit the model.

        ``agreement``: share of early answers that must be the model's own; None for what its
        caches promise, 1 for none early.
        """
        values = self._with_scalars(inputs)
        early = self.caches.start(self.loaded, values, requested, agreement)
        return early or Frame(self.loaded, values, requested)

    def threads_for(self, chosen: int) -> int:
        """``chosen`` threads, or as many as the loading lanes leave."""
        return min(chosen, self.starting.threads_now(self.threads.available))

    def close(self) -> None:
        """Let its lanes end soon; called when nobody needs it any more."""
        self.starting.table.close()

    def _with_scalars(self, inputs: Mapping[str, Value]) -> Mapping[str, Value]:
        """Triton has no tensors of rank 0: a scalar input comes as ``[1]``."""
        scalars = {
            slot.variable.name for slot in self.loaded.inputs if slot.variable.type.rank == 0
        }
        if not scalars:
            return inputs
        return {
            name: value.reshape(())
            if name in scalars and isinstance(value, torch.Tensor) and value.shape == (1,)
            else value
            for name, value in inputs.items()
        }


def load_session(
    path: Path,
    device: torch.device,
    threads: int,
    reject: Callable[[ArtefactError], None] | None,
    give_way: GiveWay | None = None,
    engine: Engine = Engine.BRISK,
) -> Session:
    """Make the model at ``path`` runnable, and let lanes load its layers.

    ``threads``: how many there are to run it. ``reject`` is told why an artefact cannot be used,
    maybe later and in another thread; None: artefacts are not looked for. Lanes call ``give_way``
    before each layer. ``engine``: what computes it; learned caches need Brisk's own. Raises
    InvalidModelError and its kin where the model cannot be served.
    """
    started_ns = time.monotonic_ns()
    artefact = None if reject is None else find_artefact(path, device, threads)
    if latest(path).exists():
        engine = Engine.BRISK
    starting = start_program(path, device, threads, artefact, reject or _ignore, engine=engine)
    program = starting.loaded.program
    for variable in (*program.inputs, *program.outputs):
        _check_tensor(variable)
    load_ns = time.monotonic_ns() - started_ns
    return Session(
        path,
        starting,
        starting.start_lanes(threads, give_way),
        load_ns,
        _summary(starting, program, load_ns),
        ThreadChoice(threads, is_fixed=isinstance(starting.source, SegmentSource)),
        SessionCaches(),
    )


def _ignore(error: ArtefactError) -> None:
    return None


def _summary(starting: StartingProgram, program: Program, load_ns: int) -> str:
    kind = "the model" if starting.artefact is None else "its artefact"
    text = f"{len(program.layers)} layers, runnable from {kind} after {load_ns / 1e6:.0f} ms"
    if isinstance(starting.source, SegmentSource):
        count = len(program.layers)
        return f"{count} segments by ONNX Runtime, runnable after {load_ns / 1e6:.0f} ms"
    names = starting.source.solution_names()
    slow = Counter(
        layer.main.operator
        for layer, name in zip(program.layers, names, strict=True)
        if name == "reference"
    )
    if slow:
        counts = ", ".join(f"{operator} ×{count}" for operator, count in slow.most_common(5))
        text += f"; by the slow reference operators: {counts}"
    return text


def _check_tensor(variable: Variable) -> None:
    kind = variable.type
    if kind.container is not Container.TENSOR:
        raise InvalidModelError(
            f"'{variable.name}' is a {kind.container.value}; Triton serves tensors only"
        )
    if kind.dtype is not None and kind.dtype not in BY_ELEMENT_NAME:
        raise InvalidModelError(
            f"'{variable.name}' is of type {kind.dtype}, for which Triton has no datatype"
        )
