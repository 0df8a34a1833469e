"""Composition: the objectives against each other, and the equations by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from brisk.exits.exploration.composition import CandidateExit, CompositionProblem, Outcomes
from brisk_bench.exits.compositions import (
    accurate_candidates,
    all_chains,
    compose_by_score,
    compose_exactly,
    compose_greedily,
    compose_with_alpha,
    expect,
    hit_rate,
    latency_gain,
)
from support.exits.composition_problems import random_problem

SLACK = 1e-7
INPUTS = 10_000


def candidate(
    point: int,
    hit_rate: float,
    evaluation_s: float = 0.1,
    memory_bytes: int = 10,
    accuracy: float = 1.0,
    overhead_s: float = 0.0,
) -> CandidateExit:
    return CandidateExit(
        point, f"v{point}", hit_rate, accuracy, evaluation_s, memory_bytes, overhead_s
    )


def problem_of(
    reach_s: tuple[float, ...],
    total_s: float,
    candidates: tuple[CandidateExit, ...],
    accuracy: float = 0.9,
    memory_budget_bytes: int | None = None,
) -> CompositionProblem:
    """What hits at a point hits at those of higher hit rate, too; wrong hits are the last ones."""
    places = np.arange(INPUTS) / INPUTS
    hits = np.array([places < one.hit_rate for one in candidates])
    right = np.array([places < one.hit_rate * one.accuracy for one in candidates])
    return CompositionProblem(
        reach_s, total_s, candidates, accuracy, Outcomes(hits, right), memory_budget_bytes
    )


@pytest.mark.parametrize("seed", range(25))
def test_the_least_expected_latency_keeps_accuracy_and_fits(seed: int) -> None:
    problem = random_problem(seed)
    chain = compose_exactly(problem)
    found = expect(problem, chain)
    assert found.accuracy >= problem.accuracy - SLACK
    assert found.latency_s <= problem.total_s
    assert problem.fits(chain)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(10))
def test_no_accurate_chain_has_a_greater_score(seed: int, alpha: float) -> None:
    problem = random_problem(seed)
    eligible = accurate_candidates(problem)

    def score(chain: tuple[int, ...]) -> float:
        return sum(
            alpha * problem.candidates[index].hit_rate + (1 - alpha) * latency_gain(problem, index)
            for index in chain
        )

    best = max(score(chain) for chain in all_chains(problem) if eligible.issuperset(chain))
    found = compose_with_alpha(problem, alpha)
    assert score(found) == pytest.approx(best, abs=1e-6)
    assert problem.fits(found)


@pytest.mark.parametrize("seed", range(10))
def test_no_other_method_beats_the_expected_latency(seed: int) -> None:
    problem = dataclasses.replace(random_problem(seed), accuracy=0.0)
    best_s = expect(problem, compose_exactly(problem)).latency_s
    others = (
        compose_by_score(problem),
        compose_greedily(problem, hit_rate),
        compose_greedily(problem, latency_gain),
    )
    for other in others:
        assert problem.fits(other)
        assert best_s <= expect(problem, other).latency_s + SLACK


def test_the_third_cache_does_not_get_the_hits_of_the_first_back() -> None:
    """The paper's eq. 5 taken literally would answer 0.9 - (0.6 - 0.4) = 0.7 there."""
    candidates = (candidate(0, 0.4), candidate(1, 0.6), candidate(2, 0.9))
    problem = problem_of((1.0, 2.0, 3.0), 4.0, candidates)
    found = expect(problem, (0, 1, 2))
    assert found.answered == pytest.approx((0.4, 0.2, 0.3))
    assert found.latency_s == pytest.approx(0.4 * 1.1 + 0.2 * 2.1 + 0.3 * 3.1 + 0.1 * 4.0)


def test_expectations_count_every_input_once() -> None:
    hits = np.array([[1, 0, 0, 0], [1, 1, 0, 0]], dtype=bool)
    right = np.array([[1, 0, 0, 0], [0, 1, 1, 1]], dtype=bool)
    problem = CompositionProblem(
        (1.0, 2.0),
        4.0,
        (candidate(0, 0.25, overhead_s=0.2), candidate(1, 0.5, accuracy=0.5, overhead_s=0.2)),
        0.9,
        Outcomes(hits, right),
    )
    found = expect(problem, (0, 1))
    assert found.answered == (0.25, 0.25)
    assert found.accuracy == 1.0  # the second one's mistake is on an input that the first answers
    overhead_s = 0.2 * (1.0 + 0.75)
    assert found.latency_s == pytest.approx((1.1 + 2.1 + 4.0 + 4.0) / 4 + overhead_s)


def test_a_third_cache_does_not_answer_again_what_the_first_has_answered() -> None:
    hits = np.array([[1, 1, 0, 0], [0, 0, 1, 0], [1, 1, 0, 1]], dtype=bool)
    candidates = (candidate(0, 0.5), candidate(1, 0.25), candidate(2, 0.75))
    outcomes = Outcomes(hits, np.ones_like(hits))
    problem = CompositionProblem((1.0, 2.0, 3.0), 4.0, candidates, 0.9, outcomes)
    found = expect(problem, (0, 1, 2))
    assert found.answered == (0.5, 0.25, 0.25)
    assert found.latency_s == pytest.approx((2 * 1.1 + 2.1 + 3.1) / 4)


def test_evaluations_must_not_overlap() -> None:
    slow = candidate(0, 0.5, evaluation_s=1.5)
    problem = problem_of((1.0, 2.0), 3.0, (slow, candidate(1, 0.6)))
    assert not problem.fits((0, 1))
    assert compose_exactly(problem) == (1,)


def test_an_evaluation_that_outlasts_the_model_is_never_chosen() -> None:
    problem = problem_of((1.0,), 3.0, (candidate(0, 0.9, evaluation_s=2.5),))
    assert compose_exactly(problem) == ()
    assert compose_by_score(problem) == ()
    assert not problem.is_worthwhile(0)


def test_caches_that_would_slow_the_model_down_are_left_out() -> None:
    problem = problem_of((1.0,), 3.0, (candidate(0, 0.1, overhead_s=0.5),))
    assert compose_exactly(problem) == ()
    assert expect(problem, ()).latency_s == 3.0
    assert not problem.is_worthwhile(0)


def test_the_memory_budget_makes_room_for_two_small_caches_instead_of_a_large_one() -> None:
    """The paper's example from Table 4: 564 MB, ResNet-18."""
    large = CandidateExit(0, "FC(1024)", 0.3875, 0.973, 0.6, 268)
    small = CandidateExit(0, "Pool(8192)", 0.341, 0.967, 0.1, 33)
    later = CandidateExit(1, "FC(1024)", 0.629, 0.995, 0.3, 134)
    problem = problem_of((3.0, 6.0), 9.0, (large, small, later), 0.96, 300)
    assert compose_exactly(problem) == (1, 2)


def test_the_sweep_of_alpha_finds_what_single_alphas_miss() -> None:
    problem = random_problem(3, points=5, variants=3)
    swept_s = expect(problem, compose_by_score(problem)).latency_s
    for alpha in (0.0, 0.5, 1.0):
        single = expect(problem, compose_with_alpha(problem, alpha))
        assert single.accuracy < problem.accuracy or swept_s <= single.latency_s + SLACK
