"""Which kernel, raw or kept weights, and which lane, for each layer of a cold start.

NNV12, section 3.3, Algorithm 1: the outer level chooses a combination of kernels, the inner one
deals their preparations to lanes. Generalised from little and big cores to one executor and any
number of lanes, each with a speed of its own. Pure functions of measured costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PASSES = 3
"""Rounds of the outer level over all layers; real plans settle in two."""

BALANCE = 0.02
"""Lanes whose ends differ by less than this share of the longest count as balanced."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One kernel for a layer, with raw weights or ``is_cached`` ones; times in ns on one core.

    ``prepare_ns``: reading, transforming, making the kernel. ``disk_bytes``: what it keeps.
    """

    solution: str
    is_cached: bool
    prepare_ns: int
    run_ns: int
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """``lanes``: layers each prepares, in order; ``executor``: layers it prepares itself.

    ``end_ns``: when the last layer has run.
    """

    lanes: tuple[tuple[int, ...], ...]
    executor: frozenset[int]
    end_ns: float


def undominated(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Line 1: without those that another beats, or equals, in both preparation and run."""
    kept: list[Candidate] = []
    order = sorted(candidates, key=lambda each: (each.prepare_ns, each.run_ns, each.disk_bytes))
    for candidate in order:
        if all(candidate.run_ns < other.run_ns for other in kept):
            kept.append(candidate)
    return kept


def schedule(chosen: Sequence[Candidate], speeds: Sequence[float], alone: float = 1.0) -> Schedule:
    """The inner level, for one combination.

    ``speeds``: of each lane, the executor's being 1. ``alone``: how many times as fast the
    executor runs once no lane needs its processor any more.
    """
    count = len(chosen)
    own: set[int] = {0} if count else set()  # line 3: the first layer boots at once
    best = _dealt(chosen, own, speeds, alone)
    for index in range(1, count):  # lines 6 to 11: work for an executor that would wait
        lane_ns = max(_lane_times(chosen, best.lanes, speeds), default=0.0)
        if lane_ns <= _executor_time(chosen, own):
            break
        tried = _dealt(chosen, own | {index}, speeds, alone)
        if tried.end_ns < best.end_ns:
            own.add(index)
            best = tried
    return best


def select(
    candidates: Sequence[Sequence[Candidate]],
    speeds: Sequence[float],
    disk_bytes: int,
    alone: float = 1.0,
) -> tuple[list[Candidate], Schedule]:
    """The outer level: a combination and its schedule, keeping at most ``disk_bytes``.

    Every combination would be tried by NNV12; here each layer in turn takes what ends the whole
    soonest, until a round changes nothing. ``speeds`` and ``alone`` as for ``schedule``.
    Precondition: each layer has a candidate.
    """
    choices = [undominated(each) for each in candidates]
    chosen = [min(each, key=lambda one: one.prepare_ns + one.run_ns) for each in choices]
    _fit(chosen, candidates, disk_bytes)
    best = schedule(chosen, speeds, alone)
    for _ in range(PASSES):
        changed = False
        for index, options in enumerate(choices):
            for option in options:
                if option is chosen[index]:
                    continue
                tried = [*chosen[:index], option, *chosen[index + 1 :]]
                if sum(each.disk_bytes for each in tried) > disk_bytes:
                    continue
                plan = schedule(tried, speeds, alone)
                if plan.end_ns < best.end_ns:
                    chosen, best, changed = tried, plan, True
        if not changed:
            break
    return chosen, best


def _fit(
    chosen: list[Candidate], candidates: Sequence[Sequence[Candidate]], disk_bytes: int
) -> None:
    """Keep raw weights where kept ones gain least per byte, until the rest fits."""
    excess = sum(each.disk_bytes for each in chosen) - disk_bytes
    swaps = []
    for index, options in enumerate(candidates):
        smaller = [each for each in options if each.disk_bytes < chosen[index].disk_bytes]
        if smaller:
            other = min(smaller, key=lambda one: one.prepare_ns + one.run_ns)
            saved = chosen[index].disk_bytes - other.disk_bytes
            lost = other.prepare_ns + other.run_ns
            lost -= chosen[index].prepare_ns + chosen[index].run_ns
            swaps.append((lost / saved, index, other, saved))
    for _, index, other, saved in sorted(swaps, key=lambda swap: swap[:2]):
        if excess <= 0:
            return
        chosen[index] = other
        excess -= saved


def _dealt(
    chosen: Sequence[Candidate], own: set[int], speeds: Sequence[float], alone: float
) -> Schedule:
    """Lines 12 to 20: preparations dealt in turn, then moved until the lanes end together."""
    lanes: list[list[int]] = [[] for _ in speeds]
    rest = [index for index in range(len(chosen)) if index not in own]
    for place, index in enumerate(rest):
        lanes[place % len(lanes)].append(index)
    for _ in range(len(rest)):
        times = _lane_times(chosen, lanes, speeds)
        longest = max(range(len(lanes)), key=lambda lane: times[lane])
        shortest = min(range(len(lanes)), key=lambda lane: times[lane])
        room = (times[longest] - times[shortest]) / 2
        if room <= BALANCE * times[longest]:
            break
        fitting = [
            index for index in lanes[longest] if chosen[index].prepare_ns / speeds[shortest] < room
        ]
        if not fitting:
            break
        moved = max(fitting, key=lambda index: chosen[index].prepare_ns)
        lanes[longest].remove(moved)
        lanes[shortest].append(moved)
        lanes[shortest].sort()
    order = tuple(map(tuple, lanes))
    return Schedule(order, frozenset(own), _end(chosen, own, order, speeds, alone))


def _lane_times(
    chosen: Sequence[Candidate], lanes: Sequence[Sequence[int]], speeds: Sequence[float]
) -> list[float]:
    return [
        sum(chosen[index].prepare_ns for index in lane) / speed
        for lane, speed in zip(lanes, speeds, strict=True)
    ]


def _executor_time(chosen: Sequence[Candidate], own: set[int]) -> int:
    return sum(each.run_ns for each in chosen) + sum(chosen[index].prepare_ns for index in own)


def _end(
    chosen: Sequence[Candidate],
    own: set[int],
    lanes: Sequence[Sequence[int]],
    speeds: Sequence[float],
    alone: float,
) -> float:
    """When the last layer has run: each runs after its preparation and the one before."""
    ready = [0.0] * len(chosen)
    busy_ns = max(_lane_times(chosen, lanes, speeds), default=0.0)
    for lane, speed in zip(lanes, speeds, strict=True):
        now = 0.0
        for index in lane:
            now += chosen[index].prepare_ns / speed
            ready[index] = now
    now = 0.0
    for index, each in enumerate(chosen):
        now = now + each.prepare_ns if index in own else max(now, ready[index])
        shared = min(max(busy_ns - now, 0.0), float(each.run_ns))
        now += shared + (each.run_ns - shared) / alone
    return now
