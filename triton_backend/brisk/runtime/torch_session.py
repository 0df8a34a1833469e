"""A session that torch computes, layer by layer: on a GPU, and where a deployment wants it.

The only module of the runtime that imports torch's engine, when the first such model comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from brisk.errors import ArtefactError
from brisk.execution.artefact import find_artefact
from brisk.execution.frame import Frame
from brisk.execution.reuse import ReusingSource
from brisk.execution.starting import StartingProgram, start_program
from brisk.execution.warming import is_settled, join_runs, load_skipped
from brisk.runtime.early_exits import SessionCaches
from brisk.runtime.session import Session
from brisk.runtime.torch_process import import_torch
from brisk.scheduling.threads import ThreadChoice
from brisk.segments.table import GiveWay
from brisk.segments.values import Value
from brisk.solutions.values import from_numpy, to_numpy

_CPU = torch.device("cpu")


class ArrayFrame(Frame):
    """A frame whose results are arrays."""

    can_answer_early = False

    def results(self) -> dict[str, Value]:  # type: ignore[override]
        return {name: to_numpy(value) for name, value in super().results().items()}


class TorchSession(Session):
    def __init__(
        self, path: Path, starting: StartingProgram, threads: int, give_way: GiveWay | None
    ) -> None:
        program = starting.loaded.program
        self.path = path
        self.starting = starting
        self.loaded = starting.loaded
        self.table = starting.table
        self.recorder = starting.recorder
        self.inputs, self.outputs = program.inputs, program.outputs
        self.threads = ThreadChoice(threads)
        self.caches = SessionCaches()
        self.load_ns = 0
        self.summary = _summary(starting)
        self._scalars = {each.name for each in self.inputs if each.type.rank == 0}
        self._lanes = starting.start_lanes(threads, give_way)

    @property
    def is_settled(self) -> bool:
        return is_settled(self.starting)

    @property
    def origin(self) -> str:
        return "model" if self.starting.wants_artefact else "artefact"

    @property
    def wants_artefact(self) -> bool:
        return self.starting.wants_artefact

    @property
    def substitutions(self) -> tuple[int, int] | None:
        source = self.starting.source
        return (source.reused, source.waited) if isinstance(source, ReusingSource) else None

    def start(
        self,
        inputs: Mapping[str, Value],
        requested: Sequence[str],
        agreement: float | None = None,
    ) -> ArrayFrame:
        values = {name: from_numpy(self._shaped(name, inputs[name]), _CPU) for name in inputs}
        return ArrayFrame(self.loaded, values, requested)

    def threads_for(self, chosen: int) -> int:
        return min(chosen, self.starting.threads_now(self.threads.available))

    def starts_with_substitutes(self) -> bool:
        return self.starting.source.has_skipped()

    def load_warm(self, may_go_on: Callable[[], bool]) -> bool:
        with torch.inference_mode():
            return load_skipped(self.starting, may_go_on)

    def join(self, cuts: Sequence[int]) -> bool:
        with torch.inference_mode():
            return join_runs(self.starting, cuts)

    def _shaped(self, name: str, value: Value) -> Value:
        """Triton has no tensors of rank 0: a scalar input comes as ``[1]``."""
        is_scalar = name in self._scalars and value.shape == (1,)
        return value.reshape(()) if is_scalar else value


def load_torch_session(
    path: Path,
    device: str,
    threads: int,
    reject: Callable[[ArtefactError], None] | None,
    give_way: GiveWay | None,
) -> TorchSession:
    """As ``load_session``."""
    import_torch(threads)
    place = torch.device(device)
    artefact = None if reject is None else find_artefact(path, place, threads)
    starting = start_program(path, place, threads, artefact, reject or _ignore)
    return TorchSession(path, starting, threads, give_way)


def _ignore(error: ArtefactError) -> None:
    return None


def _summary(starting: StartingProgram) -> str:
    program = starting.loaded.program
    kind = "the model" if starting.artefact is None else "its artefact"
    text = f"{len(program.layers)} layers from {kind}"
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
