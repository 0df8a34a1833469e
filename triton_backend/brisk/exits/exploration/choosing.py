"""From trained variants to a cascade that keeps its promise: composition, then calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from brisk.exits.bounds import fewest_to_prove
from brisk.exits.calibration import (
    CascadeCount,
    ExitCount,
    Promise,
    calibrate,
    in_order,
)
from brisk.exits.cascade import Exit, Level
from brisk.exits.composition import (
    CompositionProblem,
    Expectation,
    expect_counted,
)
from brisk.exits.exploration.composing import Tried, composed
from brisk.exits.exploration.settings import STRICTER_LEVELS, ExplorationSettings
from brisk.exits.lookup import LookUp
from brisk.exits.points import ExitPoint

MOST_IN_RESERVE = 3
RESERVED_BY = 0.6
"""Share of the model's time by which a cache in reserve has to end."""


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """``tried``: indices of the cascade's variants, in order, those in reserve among them.

    ``levels``: one at least. ``expectation`` is of the variants that answer from the start.
    """

    problem: CompositionProblem
    synchronous: bool
    tried: tuple[int, ...]
    expectation: Expectation
    levels: tuple[Level, ...]


def choose(
    problems: Mapping[bool, CompositionProblem],
    tried: Sequence[Tried],
    settings: ExplorationSettings,
) -> Chosen | str:
    """The cascade, or in words why there is none. ``problems`` by whether it is synchronous.

    Precondition: something was tried.
    """
    synchronous, expectation = composed(problems, settings)
    problem = problems[synchronous]
    if not expectation.chosen:
        return (
            f"composition chose none: no cache would make the model's "
            f"{problem.total_s * 1e3:.2f} ms shorter at accuracy {settings.accuracy:.2%}"
        )
    chosen = _without_rare(expectation, tried, settings)
    levels = _calibrated(problem, chosen, tried, settings) if chosen else ()
    if not levels or levels[0].accuracy != settings.accuracy:
        held_out = tried[0].held_out.scores.shape[0]
        return (
            f"accuracy {settings.accuracy:.2%} cannot be proved with confidence "
            f"{settings.confidence:.0%} on {held_out} held-out samples; more data, or a lower "
            "accuracy or confidence, may help"
        )
    expected = expect_counted(problem, chosen)
    kept = sorted({*chosen, *in_reserve(problem, expected)}, key=lambda i: tried[i].point)
    levels = tuple(with_reserve(level, chosen, kept) for level in levels)
    return Chosen(problem, synchronous, tuple(kept), expected, levels)


def in_reserve(problem: CompositionProblem, expected: Expectation) -> list[int]:
    """Caches for traffic unlike the data, where adaptation has learned it; the best first.

    What answers nearly all of the data at one exit answers half of traffic that is harder, and the
    other half would go through all of the model. So unused points get a cache, those farthest from
    any that are used first: earlier ones for what recurs, later ones for what is harder.
    """
    assert problem.outcomes is not None, "exploration counts outcomes"
    agreement = problem.outcomes.right.mean(1)
    used = [problem.candidates[index].point for index in expected.chosen]
    best: dict[int, tuple[float, int]] = {}
    for index, one in enumerate(problem.candidates):
        end_s = problem.reach_s[one.point] + one.burden_s + one.lookup_s
        value_s = end_s + (1 - float(agreement[index])) * problem.total_s
        if one.point not in used and end_s <= RESERVED_BY * problem.total_s:
            best[one.point] = min(best.get(one.point, (value_s, index)), (value_s, index))
    kept: list[int] = []
    used_bytes, most_bytes = expected.memory_bytes, problem.memory_budget_bytes
    while best and len(kept) < MOST_IN_RESERVE:
        taken_s = [problem.reach_s[point] for point in used] or [problem.total_s]
        point = max(best, key=lambda point: min(abs(problem.reach_s[point] - s) for s in taken_s))
        _, index = best.pop(point)
        needed = used_bytes + problem.candidates[index].memory_bytes
        if most_bytes is None or needed <= most_bytes:
            kept.append(index)
            used.append(point)
            used_bytes = needed
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


def _without_rare(
    expectation: Expectation, tried: Sequence[Tried], settings: ExplorationSettings
) -> tuple[int, ...]:
    """Caches that will answer too few held-out inputs to prove anything are left out."""
    fewest = fewest_to_prove(settings.accuracy, settings.confidence)
    held_out = tried[0].held_out.scores.shape[0]
    return tuple(
        index
        for index, share in zip(expectation.chosen, expectation.answered, strict=True)
        if share * held_out >= fewest
    )


def _calibrated(
    problem: CompositionProblem,
    chosen: Sequence[int],
    tried: Sequence[Tried],
    settings: ExplorationSettings,
) -> tuple[Level, ...]:
    """The promise asked for and all stricter ones that can be proved."""
    tuning = in_order([tried[index].tune for index in chosen])
    held_out = in_order([tried[index].held_out for index in chosen])
    candidates = [problem.candidates[index] for index in chosen]
    gains_s = [problem.total_s - problem.reach_s[one.point] - one.lookup_s for one in candidates]
    burdens_s = [one.burden_s for one in candidates]

    def saved_s(count: CascadeCount) -> float:
        return count.saving_s(gains_s, burdens_s)

    levels = []
    stricter = (level for level in STRICTER_LEVELS if level > settings.accuracy)
    for accuracy in (settings.accuracy, *stricter):
        promise = Promise(accuracy, settings.confidence)
        found = calibrate(tuning, held_out, promise, saved_s)
        if found is not None:
            levels.append(Level(accuracy, found.thresholds, found.count))
    return tuple(levels)


def noticed_at(position: int, wait_s: float, reach_s: Mapping[int, float]) -> int | None:
    """The first boundary that is reached ``wait_s`` after ``position``; None: the end is."""
    ready_s = reach_s[position] + wait_s
    behind = (other for other, at_s in sorted(reach_s.items()) if other > position)
    return next((other for other in behind if reach_s[other] >= ready_s), None)


def exit_of(
    chosen: Chosen,
    index: int,
    points: Sequence[ExitPoint],
    tried: Sequence[Tried],
    networks: Sequence[LookUp],
    reach_s: Mapping[int, float],
) -> Exit:
    """The cache ``index`` of those tried, as it is served; ``networks`` are theirs.

    ``reach_s``: of every boundary at which the model may stop.
    """
    one, candidate = tried[index], chosen.problem.candidates[index]
    end_s = chosen.problem.reach_s[one.point] + candidate.lookup_s
    point, noticed = points[one.point], None
    if not chosen.synchronous:
        noticed = noticed_at(point.position, candidate.lookup_s, reach_s)
    return Exit(
        point=point,
        variant=one.variant,
        shape=tuple(one.example.shape[1:]),
        network=networks[index],
        lookup_s=one.lookup_s,
        memory_bytes=one.memory_bytes,
        saved_s=max(0.0, chosen.problem.total_s - end_s),
        burden_s=candidate.burden_s,
        noticed_at=noticed,
    )
