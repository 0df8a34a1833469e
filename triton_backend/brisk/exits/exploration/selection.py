"""The choice among candidate cascades, and the proof of the promise of the chosen one."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from brisk.exits.cascade import Level
from brisk.exits.exploration.composition import CompositionProblem, Tried
from brisk.exits.exploration.measuring import Verification
from brisk.exits.exploration.settings import ExplorationSettings
from brisk.exits.exploration.shortlist import (
    SEQUENCES,
    CandidateCascade,
    Composer,
    candidate_cascades,
    disjoint,
    in_turn,
)
from brisk.exits.guarantee.calibration import CascadeCount, ExitCount, shared

MOST_IN_RESERVE = 3
RESERVED_BY = 0.6
"""The share of the model's time within which an evaluation in reserve has to end."""

MOST_CHOSEN = 4
CLEARLY = 0.1
"""The share of the model's time that a stricter promise has to save by caches of its own to have
them: all other requests stop at them, too."""


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """The cascade that was chosen."""

    problem: CompositionProblem
    synchronous: bool
    tried: tuple[int, ...]
    """Indices of its variants, in order, including those in reserve."""
    latency_s: float
    """The expected mean latency of the first level."""
    levels: tuple[Level, ...]
    """The proved levels, at least one."""


def decide(
    problems: Mapping[bool, CompositionProblem],
    tried: Sequence[Tried],
    settings: ExplorationSettings,
    fastest: Callable[[Sequence[CandidateCascade]], CandidateCascade],
) -> Chosen | str:
    """Return the cascade that the candidate named by ``fastest`` becomes, or why there is none.

    No held-out row is looked at before it is named, and then only it is calibrated with them.
    """
    candidates = candidate_cascades(problems, tried, settings)
    if not candidates:
        return why_none(problems, tried, settings)
    best = fastest(candidates) if len(candidates) > 1 else candidates[0]
    return choose(problems[best.synchronous], best, tried, settings)


def winner(
    results: Sequence[tuple[CandidateCascade, Verification]], miss_cost: float | None
) -> CandidateCascade:
    """Return the candidate of least mean latency in a benchmark.

    First among those faster than the model that are on time for inputs that they miss, so that the
    slowest of a hundred is no slower than the model; if there is none, among all.
    """
    on_time = [
        (candidate, one)
        for candidate, one in results
        if one.is_on_time(miss_cost) and one.cascade_s < one.base_s
    ]
    return min(on_time or results, key=lambda pair: pair[1].cascade_s)[0]


def choose(
    problem: CompositionProblem,
    candidate: CandidateCascade,
    tried: Sequence[Tried],
    settings: ExplorationSettings,
) -> Chosen | str:
    """Return the cascade that ``candidate`` becomes, or why its promise cannot be kept."""
    used: tuple[int, ...] = ()
    proved: list[tuple[Level, tuple[int, ...]]] = []
    for promise in (settings.promise, *settings.stricter):
        is_first = promise == settings.promise
        # what is tried for a stricter one depends on which sequence held-out rows proved before
        tested = promise if is_first else shared(promise, SEQUENCES)
        composer = Composer(problem, candidate.synchronous, tried, tested)
        cascades = composer.cascades(candidate.chosen)
        if is_first:
            others = [one for one in cascades if one.chosen != candidate.chosen]
            cascades = [candidate, *others]
            most_late_s = math.inf
        else:
            most_late_s = (settings.miss_cost or math.inf) * problem.total_s
            cascades = _stricter(problem, used, cascades, most_late_s)
        calibrated = composer.calibrated(disjoint(cascades), most_late_s) if cascades else None
        if calibrated is not None:
            exits, proof = calibrated
            proved.append((Level(promise.accuracy, proof.thresholds, proof.count), exits))
            used = in_turn(problem, {*used, *exits})
        elif is_first:
            return why_not_proved(tried, settings)
    served = in_turn(problem, {*used, *in_reserve(problem, used)})
    levels = tuple(with_reserve(level, exits, served) for level, exits in proved)
    return Chosen(problem, candidate.synchronous, served, candidate.latency_s, levels)


def why_none(
    problems: Mapping[bool, CompositionProblem],
    tried: Sequence[Tried],
    settings: ExplorationSettings,
) -> str:
    """Return why there are no candidate cascades. Precondition: something was tried."""
    if any(
        problem.is_worthwhile(index)
        for problem in problems.values()
        for index in range(len(tried))
    ):
        return why_not_proved(tried, settings)
    total_s = next(iter(problems.values())).total_s
    return (
        f"no cache would make the model's {total_s * 1e3:.2f} ms shorter at accuracy "
        f"{settings.accuracy:.2%}"
    )


def why_not_proved(tried: Sequence[Tried], settings: ExplorationSettings) -> str:
    """Return that the held-out rows do not prove the promise, and what may help."""
    held_out = tried[0].held_out.scores.shape[0]
    return (
        f"accuracy {settings.accuracy:.2%} cannot be proved with confidence "
        f"{settings.confidence:.0%} on {held_out} held-out samples; more data, or a lower "
        "accuracy or confidence, may help"
    )


def _stricter(
    problem: CompositionProblem,
    used: tuple[int, ...],
    cascades: Sequence[CandidateCascade],
    most_late_s: float,
) -> list[CandidateCascade]:
    """Return the candidates for a stricter promise, in the order of preference.

    More inputs miss, so the best one that delays these by at most ``most_late_s`` comes first; if
    it is refuted there is the best of all.
    """
    on_time = [one for one in cascades if problem.overhead_s(one.chosen) <= most_late_s]
    preferred, any_ = (_compatible(problem, used, each) for each in (on_time, cascades))
    return list(dict.fromkeys([*preferred[:1], *any_[:1], *preferred, *any_]))


def _compatible(
    problem: CompositionProblem, used: tuple[int, ...], cascades: Sequence[CandidateCascade]
) -> list[CandidateCascade]:
    """Return the cascades of caches that are ``used`` already, unless those with others, which can
    be served together with these, are clearly faster."""
    own = [one for one in cascades if set(one.chosen) <= set(used)]
    able = [one for one in cascades if _has_room(problem, {*used, *one.chosen})]
    own_s = own[0].latency_s if own else problem.total_s
    is_clear = able and able[0].latency_s < own_s - CLEARLY * problem.total_s
    return able if is_clear else own


def _has_room(problem: CompositionProblem, together: Collection[int]) -> bool:
    """Whether ``together`` can be one cascade: a boundary has one exit that is not in reserve."""
    places = {problem.candidates[index].place for index in together}
    few = len(places) == len(together) <= MOST_CHOSEN
    return few and problem.fits(in_turn(problem, together))


def in_reserve(problem: CompositionProblem, chosen: Sequence[int]) -> list[int]:
    """Return caches for traffic unlike the data, which adaptation may use; the best first.

    What answers nearly all of the data at one exit answers half of traffic that is harder, and the
    other half would go through all of the model. So unused points get a cache, those farthest from
    any used point first: earlier ones for what recurs, later ones for what is harder. Before these
    the first exit's point gets another variant: adaptation may learn less with the one that is
    better for the data.
    """
    agreement = problem.outcomes.right.mean(1)
    exits = [problem.candidates[index] for index in chosen]
    points = [one.point for one in exits]
    first_variants = {one.variant for one in exits if one.point == points[0]}
    best: dict[int, tuple[float, int]] = {}
    for index, one in enumerate(problem.candidates):
        end_s = problem.reach_s[one.point] + one.overhead_s + one.evaluation_s
        value_s = end_s + (1 - float(agreement[index])) * problem.total_s
        if one.is_whole:
            continue  # it learns nothing
        is_other_variant = one.point == points[0] and one.variant not in first_variants
        is_eligible = one.point not in points or is_other_variant
        if is_eligible and end_s <= RESERVED_BY * problem.total_s:
            best[one.point] = min(best.get(one.point, (value_s, index)), (value_s, index))
    reserve: list[int] = []
    while best and len(reserve) < MOST_IN_RESERVE:
        used_s = [problem.reach_s[point] for point in points]
        point = max(best, key=lambda point: min(abs(problem.reach_s[point] - s) for s in used_s))
        if points[0] in best:
            point = points[0]
        _, index = best.pop(point)
        if problem.has_memory([*chosen, *reserve, index]):
            reserve.append(index)
            points.append(point)
    return reserve


def with_reserve(level: Level, chosen: Sequence[int], served: Sequence[int]) -> Level:
    """Return the level of the exits ``chosen`` for all exits ``served``, of which the others never
    answer."""
    thresholds = dict(zip(chosen, level.thresholds, strict=True))
    counts = dict(zip(chosen, level.count.exits, strict=True))
    exits = tuple(counts.get(index, ExitCount(0, 0)) for index in served)
    return Level(
        level.accuracy,
        tuple(thresholds.get(index, math.inf) for index in served),
        CascadeCount(level.count.inputs, exits, level.count.wrong_anywhere),
    )
