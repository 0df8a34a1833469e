"""From the chains that were raced to a cascade that keeps its promise."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from brisk.exits.cascade import Level
from brisk.exits.exploration.composition import CompositionProblem, Tried
from brisk.exits.exploration.measuring import Verification
from brisk.exits.exploration.settings import ExplorationSettings
from brisk.exits.exploration.shortlist import Composer, Finalist, apart, finalists, in_turn
from brisk.exits.guarantee.calibration import CascadeCount, ExitCount

MOST_IN_RESERVE = 3
RESERVED_BY = 0.6
"""Share of the model's time by which a cache in reserve has to end."""

MOST_CHOSEN = 4
CLEARLY = 0.1
"""A stricter promise has caches of its own where they spare it that share of the model's time: all
other requests stop at them, too."""


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """``tried``: indices of the cascade's variants, in order, those in reserve among them.

    ``levels``: one at least. ``latency_s``: the mean that is expected of the first one.
    """

    problem: CompositionProblem
    synchronous: bool
    tried: tuple[int, ...]
    latency_s: float
    levels: tuple[Level, ...]


def decide(
    problems: Mapping[bool, CompositionProblem],
    tried: Sequence[Tried],
    settings: ExplorationSettings,
    fastest: Callable[[Sequence[Finalist]], Finalist],
) -> Chosen | str:
    """What the finalist that ``fastest`` names becomes; in words why there is nothing.

    No held-out row is looked at before it is named, and then only it is calibrated with them.
    """
    entered = finalists(problems, tried, settings)
    if not entered:
        return why_none(problems, tried, settings)
    best = fastest(entered) if len(entered) > 1 else entered[0]
    return choose(problems[best.synchronous], best, tried, settings)


def winner(raced: Sequence[tuple[Finalist, Verification]], miss_cost: float | None) -> Finalist:
    """Of least mean latency: first among those that are on time for inputs that they miss, so that
    the slowest of a hundred is no slower than the model. Among all, where none is and faster."""
    on_time = [
        (finalist, one)
        for finalist, one in raced
        if one.is_on_time(miss_cost) and one.cascade_s < one.base_s
    ]
    return min(on_time or raced, key=lambda pair: pair[1].cascade_s)[0]


def choose(
    problem: CompositionProblem,
    found: Finalist,
    tried: Sequence[Tried],
    settings: ExplorationSettings,
) -> Chosen | str:
    """The cascade that ``found`` becomes, or in words why its promise cannot be kept."""
    used: tuple[int, ...] = ()
    proved: list[tuple[Level, tuple[int, ...]]] = []
    for promise in (settings.promise, *settings.stricter):
        composer = Composer(problem, found.synchronous, tried, promise)
        chains = composer.chains(found.chosen)
        if promise == settings.promise:
            chains = [found, *(one for one in chains if one.chosen != found.chosen)]
            most_late_s = math.inf
        else:
            most_late_s = (settings.miss_cost or math.inf) * problem.total_s
            chains = _stricter(problem, used, chains, most_late_s)
        calibrated = composer.calibrated(apart(chains), most_late_s) if chains else None
        if calibrated is not None:
            chain, made = calibrated
            proved.append((Level(promise.accuracy, made.thresholds, made.count), chain))
            used = in_turn(problem, {*used, *chain})
        elif promise == settings.promise:
            return why_not_proved(tried, settings)
    kept = in_turn(problem, {*used, *in_reserve(problem, used)})
    levels = tuple(with_reserve(level, chain, kept) for level, chain in proved)
    return Chosen(problem, found.synchronous, kept, found.latency_s, levels)


def why_none(
    problems: Mapping[bool, CompositionProblem],
    tried: Sequence[Tried],
    settings: ExplorationSettings,
) -> str:
    """In words why there are no finalists. Precondition: something was tried."""
    if any(
        problem.is_worthwhile(index)
        for problem in problems.values()
        for index in range(len(tried))
    ):
        return why_not_proved(tried, settings)
    total_s = next(iter(problems.values())).total_s
    return (
        f"composition chose none: no cache would make the model's {total_s * 1e3:.2f} ms shorter "
        f"at accuracy {settings.accuracy:.2%}"
    )


def why_not_proved(tried: Sequence[Tried], settings: ExplorationSettings) -> str:
    held_out = tried[0].held_out.scores.shape[0]
    return (
        f"accuracy {settings.accuracy:.2%} cannot be proved with confidence "
        f"{settings.confidence:.0%} on {held_out} held-out samples; more data, or a lower "
        "accuracy or confidence, may help"
    )


def _stricter(
    problem: CompositionProblem,
    used: tuple[int, ...],
    chains: Sequence[Finalist],
    most_late_s: float,
) -> list[Finalist]:
    """Those for a stricter promise. More inputs miss, so the best one that is no later than that
    for them comes first; where it is refuted there is the best of all."""
    on_time = [one for one in chains if problem.burden_s(one.chosen) <= most_late_s]
    preferred, any_ = _beside(problem, used, on_time), _beside(problem, used, chains)
    return list(dict.fromkeys([*preferred[:1], *any_[:1], *preferred, *any_]))


def _beside(
    problem: CompositionProblem, used: tuple[int, ...], chains: Sequence[Finalist]
) -> list[Finalist]:
    """Those of the caches ``used`` already, unless with others, which have room beside them, it is
    clearly faster."""
    own = [one for one in chains if set(one.chosen) <= set(used)]
    able = [one for one in chains if _has_room(problem, {*used, *one.chosen})]
    own_s = own[0].latency_s if own else problem.total_s
    is_clear = able and able[0].latency_s < own_s - CLEARLY * problem.total_s
    return able if is_clear else own


def _has_room(problem: CompositionProblem, together: Collection[int]) -> bool:
    """Whether they can be one chain: a boundary has one that is not in reserve."""
    places = {problem.candidates[index].place for index in together}
    few = len(places) == len(together) <= MOST_CHOSEN
    return few and problem.fits(in_turn(problem, together))


def in_reserve(problem: CompositionProblem, chosen: Sequence[int]) -> list[int]:
    """Caches for traffic unlike the data, where adaptation has learned it; the best first.

    What answers nearly all of the data at one exit answers half of traffic that is harder, and the
    other half would go through all of the model. So unused points get a cache, those farthest from
    any that are used first: earlier ones for what recurs, later ones for what is harder. Before
    these the first exit's point gets another variant: of the one that is better for the data
    adaptation may not learn as much.
    """
    agreement = problem.outcomes.right.mean(1)
    used = [problem.candidates[index].point for index in chosen]
    best: dict[int, tuple[float, int]] = {}
    of_chosen = [problem.candidates[index] for index in chosen]
    there = {one.variant for one in of_chosen if one.point == used[0]}
    for index, one in enumerate(problem.candidates):
        end_s = problem.reach_s[one.point] + one.burden_s + one.lookup_s
        value_s = end_s + (1 - float(agreement[index])) * problem.total_s
        if one.is_whole:
            continue  # it learns nothing
        is_wanted = one.point not in used or (one.point == used[0] and one.variant not in there)
        if is_wanted and end_s <= RESERVED_BY * problem.total_s:
            best[one.point] = min(best.get(one.point, (value_s, index)), (value_s, index))
    kept: list[int] = []
    while best and len(kept) < MOST_IN_RESERVE:
        taken_s = [problem.reach_s[point] for point in used]
        point = max(best, key=lambda point: min(abs(problem.reach_s[point] - s) for s in taken_s))
        if used[0] in best:
            point = used[0]
        _, index = best.pop(point)
        if problem.has_memory([*chosen, *kept, index]):
            kept.append(index)
            used.append(point)
    return kept


def with_reserve(level: Level, chosen: Sequence[int], kept: Sequence[int]) -> Level:
    thresholds = dict(zip(chosen, level.thresholds, strict=True))
    counts = dict(zip(chosen, level.count.exits, strict=True))
    exits = tuple(counts.get(index, ExitCount(0, 0)) for index in kept)
    return Level(
        level.accuracy,
        tuple(thresholds.get(index, math.inf) for index in kept),
        CascadeCount(level.count.inputs, exits, level.count.wrong_anywhere),
    )
