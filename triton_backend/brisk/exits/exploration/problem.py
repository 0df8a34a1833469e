"""Trained variants as a composition problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from brisk.exits.composition import (
    Candidate,
    CompositionProblem,
    Outcomes,
)
from brisk.exits.exploration.measuring import BaseProfile, LaneCost
from brisk.exits.exploration.settings import ExplorationSettings
from brisk.exits.guarantee.calibration import Looked, threshold_for
from brisk.exits.model_graph import ExitPoint

COMPOSED_STRICTNESS = 0.6
"""Candidates are judged at thresholds that use up this share of the allowed disagreement."""


@dataclass(frozen=True, slots=True, eq=False)
class Tried:
    """A trained variant: its costs, and its scores on the rows to tune and to calibrate with.

    ``lookup_s``: in the thread that runs the model. ``model``: the look-up as ONNX. ``example``:
    one hidden output, float32 [1, ...].
    """

    point: int
    variant: str
    lookup_s: float
    model: bytes
    memory_bytes: int
    example: np.ndarray
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
    way the model has to stop at the exit; for the lane it stops once more, to see what that has
    found.
    """
    stop_s = max(0.0, profile.cut_s - profile.total_s) / len(points)
    hits, right, candidates = [], [], []
    for one in tried:
        ok = one.tune.right
        hit = one.tune.scores >= composed_threshold(one, settings)
        hits.append(hit)
        right.append(ok)
        if synchronous:
            burden_s = stop_s + cost.wake_s + one.lookup_s
        else:
            burden_s = cost.stops * stop_s + cost.burden_s
        candidates.append(
            Candidate(
                point=one.point,
                variant=one.variant,
                hit_rate=float(hit.mean()),
                accuracy=float(ok[hit].mean()) if hit.any() else 1.0,
                lookup_s=0.0 if synchronous else one.lookup_s + cost.handover_s,
                memory_bytes=one.memory_bytes,
                burden_s=burden_s,
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


def composed_threshold(one: Tried, settings: ExplorationSettings) -> float:
    """At which composition counts what ``one`` answers; of tuning rows, nothing proves it."""
    wanted = 1 - COMPOSED_STRICTNESS * (1 - settings.accuracy)
    return threshold_for(one.tune.scores, one.tune.right, wanted)
