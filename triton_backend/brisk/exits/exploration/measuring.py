"""Measurements on this machine: the base model's time to each exit point, an evaluation's time and
its overhead in either thread; and benchmarks of cascades against the model."""

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
from brisk.exits.heads.exit_model import ExitEvaluator, Given
from brisk.exits.model_graph import ExitPoint
from brisk.exits.scores import Scores
from brisk.exits.serving.exit_thread import ExitThread, evaluate_exit
from brisk.exits.serving.frame import ExitingFrame, find_places

WARM_UP, RUNS = 5, 60
EVALUATION_WARM_UP, EVALUATIONS = 3, 60
MOST_SECONDS = 2.0
"""The seconds after which a measurement ends, however few runs it has."""

Turn = TypeVar("Turn")


@dataclass(frozen=True, slots=True)
class BaseProfile:
    """Median times of a run of the base model."""

    reach_s: Mapping[int, float]
    """The time from the start to each point, by the point's position."""
    total_s: float
    """The time of the whole program."""
    cut_s: float
    """The time of a program that has to stop at the boundaries."""


def profile_base(
    whole: BaseModel,
    cut: BaseModel,
    points: Sequence[ExitPoint],
    inputs: Mapping[str, np.ndarray],
) -> BaseProfile:
    """Run the model some times, ``whole`` interleaved with ``cut``.

    ``cut`` stops behind ``points``, and is timed at each boundary.

    Stopping costs a hundredth of the model's time, which varies by more from one second to the
    next: so the cost is the median difference of two successive runs.
    """

    def once(turn: int) -> tuple[list[tuple[int, float]], float]:
        total_s = seconds_of(lambda: whole.run(inputs)) if turn % 2 else 0.0
        steps = _steps(cut, inputs)
        return steps, total_s or seconds_of(lambda: whole.run(inputs))

    turns = repeat(once, WARM_UP, RUNS)
    times_s: dict[int, list[float]] = {}
    for steps, _ in turns:
        for done, step_s in steps:
            times_s.setdefault(done, []).append(step_s)
    totals = [total_s for _, total_s in turns]
    stopping = [sum(step_s for _, step_s in steps) - total_s for steps, total_s in turns]
    positions = {point.value: point.position for point in points}
    places = cut.after(positions)
    reach_s, sum_s = {0: 0.0}, 0.0
    for done in sorted(times_s):
        sum_s += statistics.median(times_s[done])
        reach_s.update((positions[value], sum_s) for value in places.get(done, ()))
    median_s = statistics.median(totals)
    return BaseProfile(reach_s, median_s, median_s + max(0.0, statistics.median(stopping)))


def _steps(cut: BaseModel, inputs: Mapping[str, np.ndarray]) -> list[tuple[int, float]]:
    """Return the segments done at each stop of a run, and the seconds since the previous stop."""
    steps, finished = [], False
    frame = cut.start(inputs)
    before_s = time.perf_counter()
    while not finished:
        finished = frame.step()
        now_s = time.perf_counter()
        steps.append((frame.position, now_s - before_s))
        before_s = now_s
    return steps


def repeat(
    once: Callable[[int], Turn], warm_up: int, count: int, most_s: float = MOST_SECONDS
) -> list[Turn]:
    """Return the results of ``count`` turns after a warm-up; of fewer once ``most_s`` pass."""
    results: list[Turn] = []
    begun_s = time.perf_counter()
    for turn in range(warm_up + count):
        if turn in (1, warm_up):
            results = []
        results.append(once(turn))
        if turn > 3 and time.perf_counter() - begun_s > most_s:
            break
    return results


def seconds_of(run: Callable[[], object]) -> float:
    """Return the seconds that ``run`` takes."""
    started_s = time.perf_counter()
    run()
    return time.perf_counter() - started_s


@dataclass(frozen=True, slots=True)
class Between:
    """The run of a model between two evaluations."""

    run: Callable[[], object]
    run_s: float
    """The time that a run takes in the measurement that evaluations are compared with."""


def evaluation_seconds(
    ready: ExitEvaluator, hidden: Given, between: Between | None = None
) -> float:
    """Return the median time of an evaluation of one row in this thread, decision included.

    A model's weights evict an exit's from the processor's cache, in which successive evaluations
    would hit: that is twice the time and more. Other load on the machine slows down both, and
    composition compares them to a hundredth; so the result is their ratio times ``run_s``.
    """

    def once(_: int) -> tuple[float, float]:
        run_s = 0.0 if between is None else seconds_of(between.run)
        row: Given  # made just now, as when it is served
        if isinstance(hidden, np.ndarray):
            row = hidden[:1].copy()
        else:
            row = {name: array[:1].copy() for name, array in hidden.items()}
        return run_s, seconds_of(lambda: evaluate_exit(ready, row, math.inf))

    turns = repeat(once, EVALUATION_WARM_UP, EVALUATIONS, MOST_SECONDS / 4)
    median_s = statistics.median(own_s for _, own_s in turns)
    if between is None:
        return median_s
    return median_s / statistics.median(run_s for run_s, _ in turns) * between.run_s


TURNS = 100
"""The rounds that measure an evaluation's overhead, some hundredths of the model's time."""

MISSING, HITTING = 2.0, -1.0
"""A threshold that no score reaches, and one that every score reaches."""


@dataclass(frozen=True, slots=True)
class EvaluationCost:
    """The costs of handing evaluations to the exit thread, and of missing."""

    handover_s: float
    """The time by which an evaluation is longer in the exit thread than in the model's, until the
    frame reads its result."""
    overhead_s: float
    """The time that an evaluation without a hit, in the exit thread, adds to the base model's."""
    wake_s: float = 0.0
    """The time by which an evaluation in the model's own thread exceeds ``Exit.evaluation_s``."""


def evaluation_cost(
    base: BaseModel, scores: Scores, exit_: Exit, inputs: Mapping[str, np.ndarray]
) -> EvaluationCost:
    """Measure the costs of an evaluation of ``exit_``.

    In each turn the model runs without an evaluation, and with one in the exit thread and in this
    thread that misses or hits; runs are compared within a turn. ``base`` stops at every boundary
    that an exit may have, where its thread soon reads the exit thread's result.
    """
    exit_thread = ExitThread()
    runs = [run_of(base, None, exit_thread)]
    for synchronous in (False, True):
        for threshold in (MISSING, HITTING):
            level = Level(1.0, (threshold,), CascadeCount(0, (ExitCount(0, 0),), 0))
            unproved = Cascade(
                model_digest="",
                scores=scores,
                exits=(exit_,),
                levels=(level,),
                confidence=1.0,
                expected=Expected(0.0, 0.0),
                synchronous=synchronous,
            )
            runs.append(run_of(base, unproved, exit_thread))

    def once(_: int) -> list[float]:
        times_s = [0.0] * len(runs)
        for number in random.sample(range(len(runs)), len(runs)):
            times_s[number] = seconds_of(partial(runs[number], inputs))
        return times_s

    turns = np.array(repeat(once, WARM_UP, TURNS))
    exit_thread.close()
    bare_s, thread_miss_s, thread_hit_s, own_miss_s, own_hit_s = turns.T
    handover_s = float(np.median(thread_hit_s - own_hit_s))
    overhead_s = float(np.median(thread_miss_s - bare_s))
    own_s = float(np.median(own_miss_s - bare_s))
    return EvaluationCost(
        max(0.0, handover_s), max(0.0, overhead_s), max(0.0, own_s - exit_.evaluation_s)
    )


BENCHMARK_ROWS = 320
BENCHMARK_WARM_UP = 6

FEWEST_ROWS = 40
BENCHMARK_SECONDS = 10.0
"""The seconds after which a benchmark ends, unless it has fewer than ``FEWEST_ROWS`` rows."""

TAIL = 0.01
"""The share of inputs that makes up the tail of latency: fewer misses do not decide it."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Mean latency over the same inputs, the bare model's and a cascade's."""

    base_s: float
    cascade_s: float
    hit_rate: float
    late_s: float
    """Median delay of rows that no exit answered, over a run without evaluations."""

    def is_on_time(self, miss_cost: float | None) -> bool:
        """Whether misses are late by at most a share ``miss_cost`` of the model's time, or hardly
        any input is missed."""
        return self.late_s <= (miss_cost or math.inf) * self.base_s or 1 - self.hit_rate < TAIL


def benchmark(
    whole: BaseModel,
    sides: Sequence[tuple[BaseModel, Cascade]],
    inputs: Sequence[Mapping[str, np.ndarray]],
) -> list[Verification]:
    """Run each of ``inputs`` on every side and on the bare model, in alternating order.

    ``sides``: the program that stops at the cascade's exits, which answers at its first level.
    Means are without the slowest tenth. One copy of a model may be a tenth faster than another by
    where its weights lie, so a miss is compared with the same copy's run without evaluations.
    Precondition: there are inputs.
    """
    exit_thread = ExitThread()
    loaded = list(dict.fromkeys([whole, *(cut for cut, _ in sides)]))
    runs = [run_of(each, None, exit_thread) for each in loaded]
    runs += [run_of(cut, cascade, exit_thread) for cut, cascade in sides]
    times, hits = [], []
    begun_s = time.perf_counter()
    warm_up = inputs[:BENCHMARK_WARM_UP]
    for turn, values in enumerate([*warm_up, *inputs]):
        times_s, is_hit = [0.0] * len(runs), [False] * len(runs)
        for place in range(len(runs)):
            number = (turn + place) % len(runs)
            started_s = time.perf_counter()
            is_hit[number] = runs[number](values)
            times_s[number] = time.perf_counter() - started_s
        times.append(times_s)
        hits.append(is_hit)
        has_enough = turn > BENCHMARK_WARM_UP + FEWEST_ROWS
        if has_enough and time.perf_counter() - begun_s > BENCHMARK_SECONDS:
            break
    exit_thread.close()
    by_run_s, hit_by_run = (np.array(each)[len(warm_up) :].T for each in (times, hits))
    verifications = []
    for number, (cut, _) in enumerate(sides, start=len(loaded)):
        is_missed = ~hit_by_run[number]
        late_s = (by_run_s[number] - by_run_s[loaded.index(cut)])[is_missed]
        verifications.append(
            Verification(
                base_s=_mean(by_run_s[0]),
                cascade_s=_mean(by_run_s[number]),
                hit_rate=float(hit_by_run[number].mean()),
                late_s=float(np.median(late_s)) if len(late_s) else 0.0,
            )
        )
    return verifications


def run_of(
    cut: BaseModel, cascade: Cascade | None, exit_thread: ExitThread
) -> Callable[[Mapping[str, np.ndarray]], bool]:
    """Return a function that runs the model with its caches (None: without) and returns whether
    any row was answered early."""
    places = None if cascade is None else find_places(cut.plan, cut.graph, cascade)

    def run(inputs: Mapping[str, np.ndarray]) -> bool:
        if cascade is None or places is None:
            cut.run(inputs)
            return False
        used = None if cascade.synchronous else exit_thread
        frame = ExitingFrame(cut.program, cascade, places, cascade.levels[0], used, inputs)
        while not frame.step():
            pass
        return frame.has_early_answers

    return run


def _mean(times_s: np.ndarray) -> float:
    return float(np.sort(times_s)[: max(1, len(times_s) * 9 // 10)].mean())
