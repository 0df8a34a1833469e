"""From trained variants to a cascade that keeps its promise: composition, then calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from brisk.exits.bounds import fewest_to_prove
from brisk.exits.calibration import (
    CascadeCount,
    ExitCount,
    Looked,
    Promise,
    calibrate,
    in_order,
    threshold_for,
)
from brisk.exits.cascade import Exit, Level
from brisk.exits.composition import (
    Candidate,
    CompositionProblem,
    Expectation,
    Outcomes,
    compose_by_expected_latency,
    expect_counted,
)
from brisk.exits.exploration.profile import BaseProfile, LaneCost
from brisk.exits.exploration.settings import STRICTER_LEVELS, ExplorationSettings
from brisk.exits.lookup import LookUp
from brisk.exits.points import ExitPoint

COMPOSED_STRICTNESS = 0.6
"""Candidates are judged at thresholds that use up this share of the allowed disagreement."""

MOST_IN_RESERVE = 3
RESERVED_BY = 0.6
"""Share of the model's time by which a cache in reserve has to end."""


@dataclass(frozen=True, slots=True, eq=False)
class Tried:
    """A trained variant: its costs, and its scores on the rows to tune and to calibrate with.

    ``lookup_s``: in the thread that runs the model. ``example``: one hidden output, [1, ...].
    """

    point: int
    variant: str
    lookup_s: float
    memory_bytes: int
    example: torch.Tensor
    tune: Looked
    held_out: Looked


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


def composition_problem(
    tried: Sequence[Tried],
    points: Sequence[ExitPoint],
    cost: LaneCost,
    profile: BaseProfile,
    settings: ExplorationSettings,
    synchronous: bool,
) -> CompositionProblem:
    """What is known of the variants as the composition wants it, for one way of looking up.

    In the lane a look-up takes its hand-over too, and burdens the model a little. In the model's
    own thread all of it is a burden, for hits and misses alike, and look-ups never overlap. Either
    way the model has to stop at the exit, which costs a part of what joined layers gain.
    """
    wanted = 1 - COMPOSED_STRICTNESS * (1 - settings.accuracy)
    stop_s = max(0.0, profile.cut_s - profile.total_s) / len(points)
    hits, right, candidates = [], [], []
    for one in tried:
        scores, ok = one.tune.scores, one.tune.right
        hit = scores >= threshold_for(scores, ok, wanted)
        hits.append(hit)
        right.append(ok)
        candidates.append(
            Candidate(
                point=one.point,
                variant=one.variant,
                hit_rate=float(hit.mean()),
                accuracy=float(ok[hit].mean()) if hit.any() else 1.0,
                lookup_s=0.0 if synchronous else one.lookup_s + cost.handover_s,
                memory_bytes=one.memory_bytes,
                burden_s=stop_s + (one.lookup_s if synchronous else cost.burden_s),
            )
        )
    reach_s = [
        max(0.0, profile.reach_s[point.position] - stop_s * (index + 1))
        for index, point in enumerate(points)
    ]
    return CompositionProblem(
        reach_s=tuple(reach_s),
        total_s=profile.total_s,
        candidates=tuple(candidates),
        accuracy=settings.accuracy,
        memory_budget_bytes=settings.memory_budget_bytes,
        outcomes=Outcomes(np.array(hits), np.array(right)) if tried else None,
    )


def choose(
    problems: Mapping[bool, CompositionProblem],
    tried: Sequence[Tried],
    settings: ExplorationSettings,
) -> Chosen | str:
    """The cascade, or in words why there is none. ``problems`` by whether it is synchronous.

    Precondition: something was tried.
    """
    composed = {
        synchronous: expect_counted(problem, compose_by_expected_latency(problem).chosen)
        for synchronous, problem in problems.items()
    }
    synchronous = min(composed, key=lambda mode: composed[mode].latency_s)
    problem, expectation = problems[synchronous], composed[synchronous]
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


def exit_of(
    chosen: Chosen,
    index: int,
    points: Sequence[ExitPoint],
    tried: Sequence[Tried],
    networks: Sequence[LookUp],
) -> Exit:
    """The cache ``index`` of those tried, as it is served; ``networks`` are theirs."""
    one, candidate = tried[index], chosen.problem.candidates[index]
    end_s = chosen.problem.reach_s[one.point] + candidate.lookup_s
    return Exit(
        point=points[one.point],
        variant=one.variant,
        shape=tuple(one.example.shape[1:]),
        network=networks[index],
        lookup_s=one.lookup_s,
        memory_bytes=one.memory_bytes,
        saved_s=max(0.0, chosen.problem.total_s - end_s),
        burden_s=candidate.burden_s,
    )
