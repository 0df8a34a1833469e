"""Times on this machine: of the base model to each exit point, of a look-up, and what a look-up
costs the model, in the lane and in the model's own thread; and cascades raced with the model."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from brisk.exits.base_model import BaseModel
from brisk.exits.cascade import Cascade, Exit, Expected, Level
from brisk.exits.guarantee.calibration import CascadeCount, ExitCount
from brisk.exits.heads.lookup_model import Given, ReadyLookUp
from brisk.exits.model_graph import ExitPoint
from brisk.exits.scores import Scores
from brisk.exits.serving.frame import ExitingFrame, find_places
from brisk.exits.serving.lane import LookUpLane, look_up

WARM_UP, RUNS = 5, 60
LOOK_UP_WARM_UP, LOOK_UPS = 3, 60
MOST_SECONDS = 2.0
"""A measurement ends by then, however few runs it has."""

Turn = TypeVar("Turn")


@dataclass(frozen=True, slots=True)
class BaseProfile:
    """``reach_s``: from the start to a point, by its position; medians.

    ``total_s``: of the whole program; ``cut_s``: of one that has to stop at the boundaries.
    """

    reach_s: Mapping[int, float]
    total_s: float
    cut_s: float


def profile_base(
    whole: BaseModel,
    cut: BaseModel,
    points: Sequence[ExitPoint],
    inputs: Mapping[str, np.ndarray],
) -> BaseProfile:
    """Run the model some times, ``whole`` and, timed at each boundary, ``cut``, in turns.

    ``cut`` stops behind ``points``.

    What stopping costs is a hundredth of the model's time, which varies by more from one second to
    the next: so it is the median of what two runs behind each other differ by.
    """

    def once(turn: int) -> tuple[list[tuple[int, float]], float]:
        total_s = taken_s(lambda: whole.run(inputs)) if turn % 2 else 0.0
        made = _steps(cut, inputs)
        return made, total_s or taken_s(lambda: whole.run(inputs))

    turns = repeat(once, WARM_UP, RUNS)
    steps: dict[int, list[float]] = {}
    for made, _ in turns:
        for done, step_s in made:
            steps.setdefault(done, []).append(step_s)
    totals = [total_s for _, total_s in turns]
    stopping = [sum(step_s for _, step_s in made) - total_s for made, total_s in turns]
    positions = {point.value: point.position for point in points}
    places = cut.after(positions)
    reach_s, sum_s = {0: 0.0}, 0.0
    for done in sorted(steps):
        sum_s += statistics.median(steps[done])
        reach_s.update((positions[value], sum_s) for value in places.get(done, ()))
    median_s = statistics.median(totals)
    return BaseProfile(reach_s, median_s, median_s + max(0.0, statistics.median(stopping)))


def _steps(cut: BaseModel, inputs: Mapping[str, np.ndarray]) -> list[tuple[int, float]]:
    """Segments done at each stop of a run, and the seconds to there from the one before."""
    made, finished = [], False
    frame = cut.start(inputs)
    before_s = time.perf_counter()
    while not finished:
        finished = frame.step()
        now_s = time.perf_counter()
        made.append((frame.position, now_s - before_s))
        before_s = now_s
    return made


def repeat(
    once: Callable[[int], Turn], warm_up: int, count: int, most_s: float = MOST_SECONDS
) -> list[Turn]:
    """What ``count`` turns behind a warm-up give, or as many as end within ``most_s``."""
    found: list[Turn] = []
    begun_s = time.perf_counter()
    for turn in range(warm_up + count):
        if turn in (1, warm_up):
            found = []
        found.append(once(turn))
        if turn > 3 and time.perf_counter() - begun_s > most_s:
            break
    return found


def taken_s(run: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    run()
    return time.perf_counter() - started_s


@dataclass(frozen=True, slots=True)
class Between:
    """What a model does between two look-ups: a ``run``, which takes ``run_s`` where it is what
    look-ups are compared with."""

    run: Callable[[], object]
    run_s: float


def look_up_seconds(ready: ReadyLookUp, hidden: Given, between: Between | None = None) -> float:
    """Median time of a look-up of one row in this thread, decision included.

    A model's weights push a look-up's out of the processor's cache, where one after the other
    would find them: that is twice the time and more. What else the machine does slows down both,
    and composition compares them to a hundredth; so it is their ratio here times ``run_s``.
    """

    def once(_: int) -> tuple[float, float]:
        run_s = 0.0 if between is None else taken_s(between.run)
        made: Given  # just now, as when it is served
        if isinstance(hidden, np.ndarray):
            made = hidden[:1].copy()
        else:
            made = {name: array[:1].copy() for name, array in hidden.items()}
        return run_s, taken_s(lambda: look_up(ready, made, math.inf))

    turns = repeat(once, LOOK_UP_WARM_UP, LOOK_UPS, MOST_SECONDS / 4)
    median_s = statistics.median(look_s for _, look_s in turns)
    if between is None:
        return median_s
    return median_s / statistics.median(run_s for run_s, _ in turns) * between.run_s


TURNS = 100
"""In which the burden of a look-up is measured: a few hundredths of the model's time."""

MISSING, HITTING = 2.0, -1.0
"""Thresholds that no score and that every score reaches."""


@dataclass(frozen=True, slots=True)
class LaneCost:
    """``handover_s``: what a look-up in the lane takes longer than in the same thread, until the
    frame notices. What one that misses adds to the base model's time: ``burden_s`` in the lane,
    and, in the model's own thread, ``wake_s`` besides the look-up itself.
    """

    handover_s: float
    burden_s: float
    wake_s: float = 0.0


def lane_cost(
    base: BaseModel, scores: Scores, exit_: Exit, inputs: Mapping[str, np.ndarray]
) -> LaneCost:
    """Measured by running the model without a look-up, and with one at ``exit_`` in the lane and
    in this thread, that misses or hits, in turns, which are compared within each.

    ``base`` stops at every boundary that a cache may have: there its thread notices soon what the
    lane has found.
    """
    lane = LookUpLane()
    runs = [run_of(base, None, lane)]
    for synchronous in (False, True):
        for threshold in (MISSING, HITTING):
            level = Level(1.0, (threshold,), CascadeCount(0, (ExitCount(0, 0),), 0))
            unproved = (exit_,), (level,), 1.0, Expected(0.0, 0.0), synchronous
            runs.append(run_of(base, Cascade("", scores, *unproved), lane))

    def once(_: int) -> list[float]:
        taken = [0.0] * len(runs)
        for number in random.sample(range(len(runs)), len(runs)):
            taken[number] = taken_s(partial(runs[number], inputs))
        return taken

    turns = np.array(repeat(once, WARM_UP, TURNS))
    lane.close()
    bare_s, lane_miss_s, lane_hit_s, own_miss_s, own_hit_s = turns.T
    handover_s, burden_s, own_s = (
        float(np.median(more_s))
        for more_s in (lane_hit_s - own_hit_s, lane_miss_s - bare_s, own_miss_s - bare_s)
    )
    return LaneCost(max(0.0, handover_s), max(0.0, burden_s), max(0.0, own_s - exit_.lookup_s))


RACE_WARM_UP = 6

FEWEST_ROWS = 40
RACE_SECONDS = 10.0
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
    loaded = list(dict.fromkeys([whole, *(cut for cut, _ in sides)]))
    runs = [run_of(each, None, lane) for each in loaded]
    runs += [run_of(cut, cascade, lane) for cut, cascade in sides]
    times, hits = [], []
    begun_s = time.perf_counter()
    for turn, values in enumerate([*inputs[:RACE_WARM_UP], *inputs]):
        taken, is_hit = [0.0] * len(runs), [False] * len(runs)
        for place in range(len(runs)):
            number = (turn + place) % len(runs)
            started_s = time.perf_counter()
            is_hit[number] = runs[number](values)
            taken[number] = time.perf_counter() - started_s
        times.append(taken)
        hits.append(is_hit)
        if turn > RACE_WARM_UP + FEWEST_ROWS and time.perf_counter() - begun_s > RACE_SECONDS:
            break
    lane.close()
    by_run_s, hit_by_run = (
        np.array(each)[len(inputs[:RACE_WARM_UP]) :].T for each in (times, hits)
    )
    found = []
    for number, (cut, _) in enumerate(sides, start=len(loaded)):
        is_missed = ~hit_by_run[number]
        late_s = (by_run_s[number] - by_run_s[loaded.index(cut)])[is_missed]
        found.append(
            Verification(
                _mean(by_run_s[0]),
                _mean(by_run_s[number]),
                float(hit_by_run[number].mean()),
                float(np.median(late_s)) if len(late_s) else 0.0,
            )
        )
    return found


def run_of(
    cut: BaseModel, cascade: Cascade | None, lane: LookUpLane
) -> Callable[[Mapping[str, np.ndarray]], bool]:
    """Runs the model with its caches, None: bare; whether any row was answered early."""
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

    return run


def _mean(times_s: np.ndarray) -> float:
    return float(np.sort(times_s)[: max(1, len(times_s) * 9 // 10)].mean())
