"""Trained variants as a composition problem, and the way of looking up and chain that solve it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from brisk.exits.calibration import Looked, threshold_for
from brisk.exits.composition import (
    Candidate,
    CompositionProblem,
    Expectation,
    Outcomes,
    compose_by_expected_latency,
    expect_counted,
)
from brisk.exits.exploration.profile import BaseProfile, LaneCost
from brisk.exits.exploration.settings import ExplorationSettings
from brisk.exits.points import ExitPoint

COMPOSED_STRICTNESS = 0.6
"""Candidates are judged at thresholds that use up this share of the allowed disagreement."""

TAIL = 0.01
"""Share of inputs that the slowest are: with fewer misses these do not decide how slow."""


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
    way the model has to stop at the exit, which costs a part of what joined layers gain; for the
    lane it stops once more, to see what that has found.
    """
    wanted = 1 - COMPOSED_STRICTNESS * (1 - settings.accuracy)
    stop_s = max(0.0, profile.cut_s - profile.total_s) / len(points)
    looking_s = stop_s + cost.wake_s if synchronous else 2 * stop_s + cost.burden_s
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
                burden_s=looking_s + (one.lookup_s if synchronous else 0.0),
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


def composed(
    problems: Mapping[bool, CompositionProblem], settings: ExplorationSettings
) -> tuple[bool, Expectation]:
    """The way of looking up, and its chain, of least mean latency.

    First among those that delay an input which all of them miss by no more than ``miss_cost`` of
    the model's time, or that hardly an input misses: the slowest of a hundred is no slower then.
    Among all, where no such chain is faster than the model.
    """
    ways: list[tuple[bool, Expectation]] = []
    for synchronous, problem in problems.items():
        free = expect_counted(problem, compose_by_expected_latency(problem).chosen)
        ways.append((synchronous, free))
        if settings.miss_cost is not None:
            most_s = settings.miss_cost * problem.total_s
            bound = dataclasses.replace(problem, most_burden_s=most_s)
            kept = expect_counted(problem, compose_by_expected_latency(bound).chosen)
            ways.append((synchronous, kept))

    def is_on_time(way: tuple[bool, Expectation]) -> bool:
        problem, (_, one) = problems[way[0]], way
        late = problem.burden_s(one.chosen) > (settings.miss_cost or math.inf) * problem.total_s
        return bool(one.chosen) and (not late or 1 - sum(one.answered) < TAIL)

    on_time = [way for way in ways if is_on_time(way)]
    return min(on_time or ways, key=lambda way: way[1].latency_s)
