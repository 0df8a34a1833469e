"""Caches in reserve: only traffic unlike the data uses them, once they are adapted."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from brisk.exits.cascade import Level
from brisk.exits.exploration.composition import CandidateExit, CompositionProblem, Outcomes
from brisk.exits.exploration.selection import (
    MOST_IN_RESERVE,
    in_reserve,
    with_reserve,
)
from brisk.exits.guarantee.calibration import CascadeCount, ExitCount
from support.exits.cascades import served

INPUTS = 10


def problem(budget_bytes: int | None = None) -> CompositionProblem:
    """Five points a tenth of the model apart, two variants each; even ones agree more often."""
    candidates, right = [], []
    for point in range(5):
        for variant, agreeing in (("good", 9), ("bad", 5)):
            candidates.append(CandidateExit(point, variant, 0.5, 1.0, 0.01, 100, overhead_s=0.01))
            right.append([row < agreeing for row in range(INPUTS)])
    hits = np.zeros((10, INPUTS), bool)
    return CompositionProblem(
        reach_s=(0.1, 0.2, 0.3, 0.4, 0.5),
        total_s=1.0,
        candidates=tuple(candidates),
        accuracy=0.97,
        memory_budget_bytes=budget_bytes,
        outcomes=Outcomes(hits, np.array(right)),
    )


def test_points_far_from_those_in_use_have_one_each_the_better_variant() -> None:
    one = problem()
    assert in_reserve(one, (0,)) == [1, 8, 4]  # there, too, then 0.5, then halfway
    assert MOST_IN_RESERVE == 3
    assert in_reserve(one, (0, 1)) == [8, 4, 2]  # then either neighbour
    assert in_reserve(one, (6,))[:2] == [7, 0]


def test_a_point_late_in_the_model_has_none() -> None:
    one = dataclasses.replace(problem(), total_s=0.5)
    reserve = in_reserve(one, (0,))
    assert reserve == [1, 2]  # at 0.1 and 0.2; 0.3 and its evaluation end behind 60 %


def test_the_memory_budget_counts_reserves_too() -> None:
    one = problem(budget_bytes=250)
    assert in_reserve(one, (0,)) == [1]


def test_a_cache_in_reserve_answers_nothing_at_any_level() -> None:
    level = Level(0.97, (0.5, 0.6), CascadeCount(100, (ExitCount(60, 60), ExitCount(20, 20)), 1))
    longer = with_reserve(level, (3, 8), (1, 3, 5, 8))
    assert longer.thresholds == (math.inf, 0.5, math.inf, 0.6)
    assert longer.count.exits == (
        *(ExitCount(0, 0), ExitCount(60, 60)),
        *(ExitCount(0, 0), ExitCount(20, 20)),
    )
    assert longer.count.wrong_anywhere == 1


def test_a_program_does_not_stop_for_a_cache_that_answers_nothing_at_any_level() -> None:
    cascade = served(exits=(0, 1)).cascade
    first, last = (exit_.point.value for exit_ in cascade.exits)
    level = cascade.levels[0]
    off = dataclasses.replace(level, thresholds=(math.inf, math.inf))
    late = dataclasses.replace(level, thresholds=(math.inf, 0.5))
    assert dataclasses.replace(cascade, levels=(off,)).taps == ()
    assert dataclasses.replace(cascade, levels=(late, off)).taps == (last,)
    assert dataclasses.replace(cascade, levels=(off, level)).taps == (first, last)


def test_what_is_saved_counts_evaluations_that_miss() -> None:
    count = CascadeCount(10, (ExitCount(4, 4), ExitCount(0, 0), ExitCount(3, 3)), 0)
    saved_s = count.saving_s((10.0, 8.0, 5.0), (1.0, 1.0, 2.0))
    assert saved_s == (4 * 10 - 10 * 1 + 3 * 5 - 6 * 2) / 10
