"""The proof of the pudding: cascades against the bare model, in turns, on this machine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from brisk.exits.base_model import BaseModel
from brisk.exits.cascade import Cascade
from brisk.exits.serving.frame import ExitingFrame
from brisk.exits.serving.lane import LookUpLane
from brisk.exits.serving.places import find_places

WARM_UP = 6

FEWEST_ROWS = 40
MOST_SECONDS = 10.0
"""A race ends by then, however few rows are through, behind the fewest."""

TAIL = 0.01
"""Share of inputs that the slowest are: with fewer misses these do not decide how slow."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Mean latency over the same inputs, the bare model's and a cascade's.

    ``late_s``: by which rows that nothing answered were later than without look-ups, the median.
    """

    base_s: float
    cascade_s: float
    hit_rate: float
    late_s: float

    def is_on_time(self, miss_cost: float | None) -> bool:
        """Whether misses take no more than that share of the model's time longer, or hardly any
        input is missed."""
        return self.late_s <= (miss_cost or math.inf) * self.base_s or 1 - self.hit_rate < TAIL


@dataclass(slots=True, eq=False)
class _Runner:
    """One side: its times by row, and the rows that it answered early."""

    run: Callable[[Mapping[str, np.ndarray]], bool]
    taken_s: list[float] = field(default_factory=list)
    is_hit: list[bool] = field(default_factory=list)

    def take(self, inputs: Mapping[str, np.ndarray]) -> None:
        started_s = time.perf_counter()
        is_hit = self.run(inputs)
        self.taken_s.append(time.perf_counter() - started_s)
        self.is_hit.append(is_hit)


def race(
    whole: BaseModel,
    sides: Sequence[tuple[BaseModel, Cascade]],
    inputs: Sequence[Mapping[str, np.ndarray]],
) -> list[Verification]:
    """Run each of ``inputs`` on every side and on the bare model, their order changing.

    ``sides``: the program that stops at the cascade's exits, which answers at its first level.
    Means are without the slowest tenth. One copy of a model may be faster than another by a tenth,
    as its weights lie, so a miss is compared with the same copy's run without look-ups.
    Precondition: there are inputs.
    """
    lane = LookUpLane()
    loaded = (whole, *(cut for cut, _ in sides))
    bare = {id(each): _runner(each, None, lane) for each in loaded}
    runners = [_runner(cut, cascade, lane) for cut, cascade in sides]
    everyone = [*bare.values(), *runners]
    begun_s = time.perf_counter()
    for turn, values in enumerate([*inputs[:WARM_UP], *inputs]):
        first = turn % len(everyone)
        for runner in (*everyone[first:], *everyone[:first]):
            runner.take(values)
        if turn > WARM_UP + FEWEST_ROWS and time.perf_counter() - begun_s > MOST_SECONDS:
            break
    lane.close()
    warm = min(WARM_UP, len(inputs))
    return [
        _verified(bare[id(whole)], bare[id(cut)], runner, warm)
        for (cut, _), runner in zip(sides, runners, strict=True)
    ]


def _runner(cut: BaseModel, cascade: Cascade | None, lane: LookUpLane) -> _Runner:
    """Of the model with its caches; None: the bare model."""
    places = None if cascade is None else find_places(cut.plan, cut.graph, cascade)

    def run(inputs: Mapping[str, np.ndarray]) -> bool:
        if cascade is None or places is None:
            cut.run(inputs)
            return False
        used = None if cascade.synchronous else lane
        frame = ExitingFrame(cut.program, cascade, places, cascade.levels[0], used, inputs)
        while not frame.step():
            pass
        return frame.has_early_answers

    return _Runner(run)


def _verified(bare: _Runner, same: _Runner, runner: _Runner, warm: int) -> Verification:
    late_s = [
        ours_s - theirs_s
        for ours_s, theirs_s, is_hit in zip(
            runner.taken_s[warm:], same.taken_s[warm:], runner.is_hit[warm:], strict=True
        )
        if not is_hit
    ]
    return Verification(
        _mean(bare.taken_s[warm:]),
        _mean(runner.taken_s[warm:]),
        statistics.mean(runner.is_hit[warm:]),
        statistics.median(late_s) if late_s else 0.0,
    )


def _mean(times: list[float]) -> float:
    kept = sorted(times)[: max(1, len(times) * 9 // 10)]
    return statistics.mean(kept)
