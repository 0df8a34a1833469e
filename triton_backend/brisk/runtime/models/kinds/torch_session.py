"""A session that torch computes, layer by layer: on a GPU.

The only module of the runtime that imports torch's engine, when the first such model comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from brisk.execution.frame import TorchFrame
from brisk.execution.starting import StartingProgram, start_program
from brisk.runtime.early_exit.early_exits import SessionCaches
from brisk.runtime.log import tell
from brisk.runtime.models.kinds.provider_trial import compare, provider_of
from brisk.runtime.models.session import Frame, Session
from brisk.runtime.worker.device import import_torch, inference
from brisk.segments.frame import SegmentFrame
from brisk.segments.program import SegmentProgram
from brisk.segments.table import GiveWay
from brisk.segments.values import Value
from brisk.solutions.values import from_numpy, to_numpy

_CPU = torch.device("cpu")


class ArrayFrame(TorchFrame):
    """A frame whose results are arrays."""

    can_answer_early = False

    def results(self) -> dict[str, Value]:  # type: ignore[override]
        return {name: to_numpy(value) for name, value in super().results().items()}


class TorchSession(Session):
    origin = "model"
    wants_artefact = False

    def __init__(
        self,
        path: Path,
        device: str,
        starting: StartingProgram,
        threads: int,
        give_way: GiveWay | None,
    ) -> None:
        program = starting.loaded.program
        self.path = path
        self.loaded = starting.loaded
        self.table = starting.table
        self.recorder = starting.recorder
        self.inputs, self.outputs = program.inputs, program.outputs
        self.threads = threads
        self.caches = SessionCaches()
        self.load_ns = 0
        self.summary = _summary(starting)
        self._device = device
        self._program: SegmentProgram | None = None
        """ONNX Runtime's, where that is faster here."""
        self._scalars = {each.name for each in self.inputs if each.type.rank == 0}
        self._lanes = starting.start_lanes(threads, give_way)

    def start(
        self,
        inputs: Mapping[str, Value],
        requested: Sequence[str],
        agreement: float | None = None,
    ) -> Frame:
        if self._program is not None:
            return SegmentFrame(self._program, inputs, requested)
        return self._torch_frame(inputs, requested)

    def _torch_frame(self, inputs: Mapping[str, Value], requested: Sequence[str]) -> ArrayFrame:
        values = {name: from_numpy(self._shaped(name, inputs[name]), _CPU) for name in inputs}
        return ArrayFrame(self.loaded, values, requested)

    def starts_with_substitutes(self) -> bool:
        return False

    def load_warm(self, may_go_on: Callable[[], bool]) -> bool:
        provider = provider_of(self._device)
        if provider is not None and self.table.is_whole and may_go_on():
            result = compare(self.path, self.threads, provider, self._run)
            tell(f"{self.path}: {result.words}")
            self._program = result.program
        return self.table.is_whole

    def _run(self, inputs: Mapping[str, Value]) -> Mapping[str, Value]:
        """By torch, to the end."""
        with inference():
            frame = self._torch_frame(inputs, [each.name for each in self.outputs])
            while not frame.step():
                pass
            return frame.results()

    def _shaped(self, name: str, value: Value) -> Value:
        """Triton has no tensors of rank 0: a scalar input comes as ``[1]``."""
        is_scalar = name in self._scalars and value.shape == (1,)
        return value.reshape(()) if is_scalar else value


def load_torch_session(
    path: Path, device: str, threads: int, give_way: GiveWay | None
) -> TorchSession:
    """As ``load_session``."""
    import_torch(threads)
    starting = start_program(path, torch.device(device), threads)
    return TorchSession(path, device, starting, threads, give_way)


def _summary(starting: StartingProgram) -> str:
    text = f"{len(starting.plan.layers)} layers from the model"
    slow = Counter(
        planned.problem.operator
        for planned in starting.plan.layers
        if planned.solution.name == "reference"
    )
    if slow:
        counts = ", ".join(f"{operator} ×{count}" for operator, count in slow.most_common(5))
        text += f"; by the slow reference operators: {counts}"
    return text
