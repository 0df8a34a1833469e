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
from brisk.runtime.models.session import Session
from brisk.runtime.torch_process import import_torch
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
        self, path: Path, starting: StartingProgram, threads: int, give_way: GiveWay | None
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
        self._scalars = {each.name for each in self.inputs if each.type.rank == 0}
        self._lanes = starting.start_lanes(threads, give_way)

    def start(
        self,
        inputs: Mapping[str, Value],
        requested: Sequence[str],
        agreement: float | None = None,
    ) -> ArrayFrame:
        values = {name: from_numpy(self._shaped(name, inputs[name]), _CPU) for name in inputs}
        return ArrayFrame(self.loaded, values, requested)

    def starts_with_substitutes(self) -> bool:
        return False

    def load_warm(self, may_go_on: Callable[[], bool]) -> bool:
        return self.table.is_whole

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
    return TorchSession(path, starting, threads, give_way)


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
