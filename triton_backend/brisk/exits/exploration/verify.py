"""The proof of the pudding: the cascade against the bare model, in turns, on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from brisk.execution import Frame, LoadedProgram
from brisk.exits.cascade import Cascade
from brisk.exits.serving import ExitingFrame, LookUpLane, find_places
from brisk.solutions.base import Value

WARM_UP = 6


@dataclass(frozen=True, slots=True)
class Verification:
    """Mean latency over the same inputs, and the median of the bare model's."""

    base_s: float
    cascade_s: float
    hit_rate: float


def verify(
    whole: LoadedProgram,
    cut: LoadedProgram,
    cascade: Cascade,
    inputs: Sequence[Mapping[str, Value]],
) -> Verification:
    """Run each of ``inputs`` both ways, the order changing; means without the slowest tenth."""
    places = find_places(cut, cascade)
    level = cascade.levels[0]
    lane = None if cascade.synchronous else LookUpLane()
    base: list[float] = []
    early: list[float] = []
    hits = 0
    with torch.inference_mode():
        for turn, values in enumerate([*inputs[:WARM_UP], *inputs]):
            for exiting in (turn % 2 == 0, turn % 2 == 1):
                started_s = time.perf_counter()
                if exiting and places is not None:
                    frame = ExitingFrame(cut, cascade, places, level, lane, values)
                    while not frame.step():
                        pass
                    early.append(time.perf_counter() - started_s)
                    hits += turn >= WARM_UP and frame.answers[0].exit_index is not None
                else:
                    plain = Frame(whole, values)
                    while not plain.step():
                        pass
                    base.append(time.perf_counter() - started_s)
    if lane is not None:
        lane.close()
    means = (_mean(base[WARM_UP:]), _mean(early[WARM_UP:]))
    return Verification(*means, hits / max(len(inputs), 1))


def _mean(times: list[float]) -> float:
    kept = sorted(times)[: max(1, len(times) * 9 // 10)]
    return statistics.mean(kept)
