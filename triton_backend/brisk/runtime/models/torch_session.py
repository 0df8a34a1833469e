"""A session that torch computes, layer by layer: on a GPU.

The only module of the runtime that imports torch's engine, when the first such model comes.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from brisk.execution.frame import TorchFrame
from brisk.execution.loading import StartingProgram, start_program
from brisk.runtime.early_exit.early_exits import SessionCaches
from brisk.runtime.log import LOGGER
from brisk.runtime.models.session import Due, Frame, Session
from brisk.runtime.worker.device import import_torch, inference
from brisk.segments.frame import SegmentFrame, run_serially
from brisk.segments.model.cutting import LONGEST_SEGMENT_NS
from brisk.segments.model.sources import BareModel
from brisk.segments.prepared.trial import SIZES, made_up
from brisk.segments.program import SegmentProgram
from brisk.segments.session import onnxruntime
from brisk.segments.starting import open_warm_program
from brisk.segments.table import GiveWay
from brisk.segments.values import Value
from brisk.solutions.values import from_numpy, to_numpy

_CPU = torch.device("cpu")

LEAST_GAIN = 1.05
"""How many times as fast it must be to take over."""

RUNS = 7
"""Of either, in turns, after one that does not count."""

RELATIVE, ABSOLUTE = 1e-3, 1e-4
"""How far answers may be apart, as on a processor."""

RunModel = Callable[[Mapping[str, Value]], Mapping[str, Value]]


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
        self.inputs, self.outputs = program.inputs, program.outputs
        self.threads = threads
        self.caches = SessionCaches()
        self.load_ns = 0
        self.summary = _summary(starting)
        self._device = device
        self._program: SegmentProgram | None = None
        """ONNX Runtime's, where that is faster here."""
        starting.start_lanes(threads, give_way)

    def start(
        self,
        inputs: Mapping[str, Value],
        requested: Sequence[str],
        agreement: float | None = None,
        dues: Sequence[Due] = (),
    ) -> Frame:
        if self._program is not None:
            return SegmentFrame(self._program, inputs, requested)
        return self._torch_frame(inputs, requested)

    def _torch_frame(self, inputs: Mapping[str, Value], requested: Sequence[str]) -> ArrayFrame:
        values = {name: from_numpy(value, _CPU) for name, value in inputs.items()}
        return ArrayFrame(self.loaded, values, requested)

    def load_warm(self, may_go_on: Callable[[], bool]) -> bool:
        provider = provider_of(self._device)
        if provider is not None and self.table.is_whole and may_go_on():
            result = compare(self.path, self.threads, provider, self.run_by_torch)
            LOGGER.info(f"{self.path}: {result.words}")
            self._program = result.program
        return self.table.is_whole

    def run_by_torch(self, inputs: Mapping[str, Value]) -> Mapping[str, Value]:
        """By torch, to the end."""
        with inference():
            frame = self._torch_frame(inputs, [each.name for each in self.outputs])
            while not frame.step():
                pass
            return frame.results()


def load_torch_session(
    path: Path, device: str, threads: int, give_way: GiveWay | None
) -> TorchSession:
    """As ``load_session``."""
    import_torch(threads)
    starting = start_program(path, torch.device(device))
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


# ONNX Runtime against torch: where its package has a provider for the GPU, a loaded model runs by
# whichever is faster.
#
# The whole model is one session then, so a request of another class waits for all of it: only what
# is no longer than a segment may be on a processor takes part.


@dataclass(frozen=True, slots=True)
class Comparison:
    """``program``: ONNX Runtime's, which is to take over; None: torch stays. ``words``: why."""

    program: SegmentProgram | None
    words: str


def provider_of(device: str) -> tuple[str, dict[str, str]] | None:
    """The provider for ``cuda:N``, in full float32; None where the package has none."""
    name = "CUDAExecutionProvider"
    if not device.startswith("cuda") or name not in onnxruntime().get_available_providers():
        return None
    return name, {"device_id": device.partition(":")[2] or "0", "use_tf32": "0"}


def compare(path: Path, threads: int, provider: Any, run_torch: RunModel) -> Comparison:
    """Run the model with made-up inputs on ``provider`` and by ``run_torch``, in turns.

    Raises InvalidModelError where ONNX Runtime does not take the model.
    """
    source = BareModel(path, threads, longest_ns=math.inf, provider=provider)
    program = open_warm_program(source)

    def run_ours(inputs: Mapping[str, Value]) -> Mapping[str, Value]:
        return run_serially(program, inputs)

    for size in SIZES:
        try:
            inputs = made_up(program.plan, size)
            ours, theirs = run_ours(inputs), run_torch(inputs)
        except Exception:  # noqa: BLE001  # made-up inputs need not suit a model
            continue
        break
    else:
        return Comparison(None, "made-up inputs do not suit the model")
    if not all(_are_alike(np.asarray(ours[name]), np.asarray(theirs[name])) for name in ours):
        return Comparison(None, "ONNX Runtime's answers differ from torch's")
    times: dict[RunModel, list[int]] = {run_ours: [], run_torch: []}
    for _ in range(RUNS):
        for run, taken in times.items():
            begun_ns = time.monotonic_ns()
            run(inputs)
            taken.append(time.monotonic_ns() - begun_ns)
    ours_ns, theirs_ns = (statistics.median(taken) for taken in times.values())
    words = f"{ours_ns / 1e6:.2f} ms by ONNX Runtime, {theirs_ns / 1e6:.2f} by torch"
    if ours_ns > LONGEST_SEGMENT_NS or theirs_ns < LEAST_GAIN * ours_ns:
        return Comparison(None, words)
    return Comparison(program, words)


def _are_alike(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    return bool(np.allclose(one, other, RELATIVE, ABSOLUTE, equal_nan=True))
