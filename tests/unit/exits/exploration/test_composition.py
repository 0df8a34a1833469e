"""Composition: the integer programs against brute force, and the equations by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from brisk.exits.composition import (
    Candidate,
    CompositionProblem,
    Outcomes,
    compose_by_expected_latency,
    compose_by_hit_rate,
    compose_by_latency_gain,
    compose_by_score,
    expect,
    expect_counted,
)
from brisk.exits.composition.score import accurate_candidates, compose_with_alpha, latency_gain
from support.exits.composition_problems import all_chains, random_problem

SLACK = 1e-7


def candidate(
    point: int,
    hit_rate: float,
    lookup_s: float = 0.1,
    memory_bytes: int = 10,
    accuracy: float = 1.0,
    burden_s: float = 0.0,
) -> Candidate:
    return Candidate(point, f"v{point}", hit_rate, accuracy, lookup_s, memory_bytes, burden_s)


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_the_least_expected_latency_is_that_of_brute_force(seed: int, counted: bool) -> None:
    problem = random_problem(seed, counted=counted)
    accurate = [
        found
        for chain in all_chains(problem)
        if (found := expect(problem, chain)).accuracy >= problem.accuracy
    ]
    best_s = min(found.latency_s for found in accurate)
    found = compose_by_expected_latency(problem)
    assert found.latency_s == pytest.approx(best_s, abs=1e-6)
    assert found.accuracy >= problem.accuracy - SLACK
    assert problem.fits(found.chosen)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(10))
def test_the_greatest_score_is_that_of_brute_force(seed: int, alpha: float) -> None:
    problem = random_problem(seed)
    eligible = accurate_candidates(problem)

    def score(chain: tuple[int, ...]) -> float:
        return sum(
            alpha * problem.candidates[index].hit_rate + (1 - alpha) * latency_gain(problem, index)
            for index in chain
        )

    best = max(score(chain) for chain in all_chains(problem) if eligible.issuperset(chain))
    found = compose_with_alpha(problem, alpha)
    assert score(found.chosen) == pytest.approx(best, abs=1e-6)
    assert problem.fits(found.chosen)


@pytest.mark.parametrize("seed", range(10))
def test_no_other_method_beats_the_expected_latency(seed: int) -> None:
    problem = dataclasses.replace(random_problem(seed, counted=True), accuracy=0.0)
    best_s = compose_by_expected_latency(problem).latency_s
    _, scored = compose_by_score(problem)
    for other in (scored, compose_by_hit_rate(problem), compose_by_latency_gain(problem)):
        assert problem.fits(other.chosen)
        assert best_s <= other.latency_s + SLACK


def test_the_third_cache_does_not_get_the_hits_of_the_first_back() -> None:
    """The paper's eq. 5 taken literally would answer 0.9 - (0.6 - 0.4) = 0.7 there."""
    problem = CompositionProblem(
        (1.0, 2.0, 3.0), 4.0, (candidate(0, 0.4), candidate(1, 0.6), candidate(2, 0.9)), 0.9
    )
    found = expect(problem, (0, 1, 2))
    assert found.answered == pytest.approx((0.4, 0.2, 0.3))
    assert found.latency_s == pytest.approx(0.4 * 1.1 + 0.2 * 2.1 + 0.3 * 3.1 + 0.1 * 4.0)


def test_expectations_count_every_input_once_where_outcomes_are_known() -> None:
    hits = np.array([[1, 0, 0, 0], [1, 1, 0, 0]], dtype=bool)
    right = np.array([[1, 0, 0, 0], [0, 1, 1, 1]], dtype=bool)
    problem = CompositionProblem(
        (1.0, 2.0),
        4.0,
        (candidate(0, 0.25, burden_s=0.2), candidate(1, 0.5, accuracy=0.5, burden_s=0.2)),
        0.9,
        outcomes=Outcomes(hits, right),
    )
    found = expect(problem, (0, 1))
    assert found.answered == (0.25, 0.25)
    assert found.accuracy == 1.0  # the second one's mistake is on an input that the first answers
    burden_s = 0.2 * (1.0 + 0.75)
    assert found.latency_s == pytest.approx((1.1 + 2.1 + 4.0 + 4.0) / 4 + burden_s)


def test_a_third_cache_does_not_answer_again_what_the_first_has_answered() -> None:
    hits = np.array([[1, 1, 0, 0], [0, 0, 1, 0], [1, 1, 0, 1]], dtype=bool)
    problem = CompositionProblem(
        (1.0, 2.0, 3.0),
        4.0,
        (candidate(0, 0.5), candidate(1, 0.25), candidate(2, 0.75)),
        0.9,
        outcomes=Outcomes(hits, np.ones_like(hits)),
    )
    assert sum(expect(problem, (0, 1, 2)).answered) > 1
    found = expect_counted(problem, (0, 1, 2))
    assert found.answered == (0.5, 0.25, 0.25)
    assert found.latency_s == pytest.approx((2 * 1.1 + 2.1 + 3.1) / 4)


def test_look_ups_must_not_overlap() -> None:
    slow = candidate(0, 0.5, lookup_s=1.5)
    problem = CompositionProblem((1.0, 2.0), 3.0, (slow, candidate(1, 0.6)), 0.9)
    assert not problem.fits((0, 1))
    assert compose_by_expected_latency(problem).chosen == (1,)


def test_a_look_up_that_outlasts_the_model_is_never_chosen() -> None:
    problem = CompositionProblem((1.0,), 3.0, (candidate(0, 0.9, lookup_s=2.5),), 0.9)
    assert compose_by_expected_latency(problem).chosen == ()
    assert compose_by_score(problem)[1].chosen == ()


def test_caches_that_would_slow_the_model_down_are_left_out() -> None:
    burdened = candidate(0, 0.1, burden_s=0.5)
    problem = CompositionProblem((1.0,), 3.0, (burdened,), 0.9)
    found = compose_by_expected_latency(problem)
    assert found.chosen == ()
    assert found.latency_s == 3.0


def test_the_memory_budget_makes_room_for_two_small_caches_instead_of_a_large_one() -> None:
    """The paper's example from Table 4: 564 MB, ResNet-18."""
    large = Candidate(0, "FC(1024)", 0.3875, 0.973, 0.6, 268)
    small = Candidate(0, "Pool(8192)", 0.341, 0.967, 0.1, 33)
    later = Candidate(1, "FC(1024)", 0.629, 0.995, 0.3, 134)
    problem = CompositionProblem((3.0, 6.0), 9.0, (large, small, later), 0.96, 300)
    assert compose_by_expected_latency(problem).chosen == (1, 2)


def test_the_sweep_of_alpha_finds_what_single_alphas_miss() -> None:
    problem = random_problem(3, points=5, variants=3)
    _, swept = compose_by_score(problem)
    for alpha in (0.0, 0.5, 1.0):
        single = compose_with_alpha(problem, alpha)
        assert single.accuracy < problem.accuracy or swept.latency_s <= single.latency_s + SLACK
