"""Times on this machine: how long the base model takes to each exit point, and a look-up."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from brisk.exits.base_model import BaseModel
from brisk.exits.heads.lookup_model import ReadyLookUp
from brisk.exits.points import ExitPoint
from brisk.exits.serving.lane import look_up

WARM_UP, RUNS = 5, 60
LOOK_UPS = 60
MOST_SECONDS = 2.0
"""A measurement ends by then, however few runs it has."""


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
    steps: dict[int, list[float]] = {}
    totals: list[float] = []
    stopping: list[float] = []
    run = run_of(whole, inputs)
    begun_s = time.perf_counter()
    for turn in range(WARM_UP + RUNS):
        if turn in (1, WARM_UP):
            steps, totals, stopping = {}, [], []
        total_s = taken_s(run) if turn % 2 else 0.0
        sum_s = 0.0
        for done, step_s in _steps(cut, inputs):
            steps.setdefault(done, []).append(step_s)
            sum_s += step_s
        total_s = total_s or taken_s(run)
        totals.append(total_s)
        stopping.append(sum_s - total_s)
        if len(totals) > 2 and time.perf_counter() - begun_s > MOST_SECONDS:
            break
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
        made.append((frame.layers_done, now_s - before_s))
        before_s = now_s
    return made


def taken_s(run: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    run()
    return time.perf_counter() - started_s


@dataclass(frozen=True, slots=True)
class Between:
    """What a model does between two look-ups: a ``run``, which takes ``run_s`` where it is what
    look-ups are compared with."""

    run: Callable[[], None]
    run_s: float


def look_up_seconds(
    ready: ReadyLookUp, hidden: np.ndarray, between: Between | None = None
) -> float:
    """Median time of a look-up of one row in this thread, decision included.

    A model's weights push a look-up's out of the processor's cache, where one after the other
    would find them: that is twice the time and more. What else the machine does slows down both,
    and composition compares them to a hundredth; so it is their ratio here times ``run_s``.
    """
    hidden = hidden[:1]
    times: list[float] = []
    runs: list[float] = []
    begun_s = time.perf_counter()
    for turn in range(3 + LOOK_UPS):
        run_s = taken_s(between.run) if between is not None else 0.0
        made = hidden.copy()  # just now, as when it is served
        look_s = taken_s(functools.partial(look_up, ready, made, math.inf))
        if turn == 3:
            times, runs = [], []
        times.append(look_s)
        runs.append(run_s)
        if time.perf_counter() - begun_s > MOST_SECONDS / 4:
            break
    median_s = statistics.median(times)
    if between is None:
        return median_s
    return median_s / statistics.median(runs) * between.run_s


def run_of(base: BaseModel, inputs: Mapping[str, np.ndarray]) -> Callable[[], None]:
    """A run of the model, for what is measured behind one."""

    def run() -> None:
        base.run(inputs)

    return run
