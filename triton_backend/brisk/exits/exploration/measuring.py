"""Times on this machine: of the base model to each exit point, of a look-up, and what a look-up
costs the model, in the lane and in the model's own thread; and cascades raced with the model."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeVar

import numpy as np

from brisk.exits.base_model import BaseModel
from brisk.exits.cascade import Cascade
from brisk.exits.heads.lookup_model import ReadyLookUp
from brisk.exits.model_graph import ExitPoint
from brisk.exits.serving.frame import ExitingFrame, find_places
from brisk.exits.serving.lane import LookUpLane, LookUpOutcome, Ticket, look_up

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
        made.append((frame.layers_done, now_s - before_s))
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


def look_up_seconds(
    ready: ReadyLookUp, hidden: np.ndarray, between: Between | None = None
) -> float:
    """Median time of a look-up of one row in this thread, decision included.

    A model's weights push a look-up's out of the processor's cache, where one after the other
    would find them: that is twice the time and more. What else the machine does slows down both,
    and composition compares them to a hundredth; so it is their ratio here times ``run_s``.
    """

    def once(_: int) -> tuple[float, float]:
        run_s = 0.0 if between is None else taken_s(between.run)
        made = hidden[:1].copy()  # just now, as when it is served
        return run_s, taken_s(lambda: look_up(ready, made, math.inf))

    turns = repeat(once, LOOK_UP_WARM_UP, LOOK_UPS, MOST_SECONDS / 4)
    median_s = statistics.median(look_s for _, look_s in turns)
    if between is None:
        return median_s
    return median_s / statistics.median(run_s for run_s, _ in turns) * between.run_s


TURNS = 100
"""In which the burden of a look-up is measured: a few hundredths of the model's time."""


@dataclass(frozen=True, slots=True)
class LaneCost:
    """``handover_s``: what a look-up in the lane takes longer than in the same thread, until the
    frame notices. What one that misses adds to the base model's time: ``burden_s`` in the lane,
    and, in the model's own thread, ``wake_s`` besides the look-up itself.

    ``stops``: boundaries at which a model has to stop for an exit that is looked up in the lane.
    """

    handover_s: float
    burden_s: float
    wake_s: float = 0.0
    stops: int = 2


def lane_cost(
    base: BaseModel,
    inputs: Mapping[str, np.ndarray],
    ready: ReadyLookUp,
    hidden: np.ndarray,
) -> LaneCost:
    """Measured by running the model without a look-up, with one in the lane in its first half that
    misses or hits, and with one in this thread there, in turns, which are compared within each.

    ``base`` stops at every boundary that a cache may have: there its thread notices soon what the
    lane has found.
    """
    lane = LookUpLane()

    def once(_: int) -> dict[_Way, _Turn]:
        made = {}
        for way in random.sample(list(_Way), len(_Way)):
            threshold = -1.0 if way is _Way.HITTING else 2.0
            ticket = Ticket(0, ready, threshold, hidden[:1], (0,))
            made[way] = _run_with(base, inputs, ticket, lane, way)
        return made

    turns = repeat(once, WARM_UP, TURNS)
    lane.close()

    def median(of: Callable[[dict[_Way, _Turn]], float]) -> float:
        return statistics.median(map(of, turns))

    alone_s = median(lambda one: one[_Way.WITHIN].look_up_s)
    noticed_s = median(lambda one: one[_Way.HITTING].look_up_s)
    beside_s = median(lambda one: one[_Way.MISSING].whole_s - one[_Way.NONE].whole_s)
    within_s = median(lambda one: one[_Way.WITHIN].whole_s - one[_Way.NONE].whole_s) - alone_s
    return LaneCost(max(0.0, noticed_s - alone_s), max(0.0, beside_s), max(0.0, within_s))


class _Way(Enum):
    """Of a look-up in a run: not at all, in the lane, in the model's own thread."""

    NONE = auto()
    MISSING = auto()
    HITTING = auto()
    WITHIN = auto()


@dataclass(frozen=True, slots=True)
class _Turn:
    """A run of the model; ``look_up_s``: until its frame, or this thread, had the outcome."""

    whole_s: float
    look_up_s: float


def _run_with(
    base: BaseModel,
    inputs: Mapping[str, np.ndarray],
    ticket: Ticket,
    lane: LookUpLane,
    way: _Way,
) -> _Turn:
    """One run, the ticket looked up behind its first quarter; it ends with a hit."""
    quarter = len(base.plan.segments) // 4
    offered_s = noticed_s = None
    frame = base.start(inputs)
    started_s = time.perf_counter()
    finished = False
    while not finished:
        finished = frame.step()
        if offered_s is None and frame.layers_done >= quarter:
            ticket.hidden = ticket.hidden.copy()
            offered_s = time.perf_counter()
            if way is _Way.WITHIN:
                found = look_up(ticket.look_up, ticket.hidden, ticket.threshold)
                ticket.outcome = found or LookUpOutcome((), None)
            elif way is not _Way.NONE:
                lane.offer(ticket)
        if noticed_s is None and ticket.outcome is not None:
            noticed_s = time.perf_counter()
            finished = finished or way is _Way.HITTING
    ended_s = time.perf_counter()
    look_up_s = (noticed_s or ended_s) - (offered_s or started_s)
    return _Turn(ended_s - started_s, look_up_s)


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
    for turn, values in enumerate([*inputs[:RACE_WARM_UP], *inputs]):
        first = turn % len(everyone)
        for runner in (*everyone[first:], *everyone[:first]):
            runner.take(values)
        if turn > RACE_WARM_UP + FEWEST_ROWS and time.perf_counter() - begun_s > RACE_SECONDS:
            break
    lane.close()
    warm = min(RACE_WARM_UP, len(inputs))
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
