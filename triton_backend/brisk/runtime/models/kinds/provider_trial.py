"""ONNX Runtime against torch on a GPU: where its package has a provider for the device, a loaded
model runs by whichever is faster.

The whole model is one session then, so a request of another class waits for all of it: only what
is no longer than a segment may be on a processor takes part.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from brisk.segments.frame import run_serially
from brisk.segments.model.cutting import LONGEST_SEGMENT_NS
from brisk.segments.model.sources import BareModel
from brisk.segments.prepared.trial import SIZES, made_up
from brisk.segments.program import SegmentProgram
from brisk.segments.session import onnxruntime
from brisk.segments.starting import open_warm_program
from brisk.segments.values import Value

LEAST_GAIN = 1.05
"""How many times as fast it must be to take over."""

RUNS = 7
"""Of either, in turns, after one that does not count."""

RELATIVE, ABSOLUTE = 1e-3, 1e-4
"""How far answers may be apart, as on a processor."""

Run = Callable[[Mapping[str, Value]], Mapping[str, Value]]


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


def compare(path: Path, threads: int, provider: Any, run_torch: Run) -> Comparison:
    """Run the model with made-up inputs on ``provider`` and by ``run_torch``, in turns.

    Raises InvalidModelError where ONNX Runtime does not take the model.
    """
    source = BareModel(path, threads, longest_ns=math.inf, provider=provider)
    program = open_warm_program(source, threads)

    def run_ours(inputs: Mapping[str, Value]) -> Mapping[str, Value]:
        return run_serially(program, inputs)

    found = _first_answers(program, run_ours, run_torch)
    if found is None:
        return Comparison(None, "made-up inputs do not suit the model")
    inputs, ours, theirs = found
    if not _agree(ours, theirs):
        return Comparison(None, "ONNX Runtime's answers differ from torch's")
    times: dict[Run, list[int]] = {run_ours: [], run_torch: []}
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


def _first_answers(
    program: SegmentProgram, *runs: Run
) -> tuple[Mapping[str, Value], Mapping[str, Value], Mapping[str, Value]] | None:
    """Inputs of the first sizes that both take, and their answers."""
    for size in SIZES:
        try:
            inputs = {name: each.numpy() for name, each in made_up(program.plan, size).items()}
            ours, theirs = (run(inputs) for run in runs)
        except Exception:  # noqa: BLE001  # made-up inputs need not suit a model
            continue
        return inputs, ours, theirs
    return None


def _agree(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    return all(_are_alike(np.asarray(ours[name]), np.asarray(theirs[name])) for name in ours)


def _are_alike(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    return bool(np.allclose(one, other, RELATIVE, ABSOLUTE, equal_nan=True))
