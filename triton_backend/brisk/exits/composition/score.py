"""Composition by the paper's score (GATI, A.1.2: eq. 11 to 14), α chosen by a sweep."""

from __future__ import annotations

from collections.abc import Sequence

from brisk.exits.composition.chains import best_chain
from brisk.exits.composition.expectation import Expectation, expect, pair_rates
from brisk.exits.composition.problem import CompositionProblem

ALPHAS = tuple(step / 10 for step in range(11))


def latency_gain(problem: CompositionProblem, index: int) -> float:
    """The whole model's time over the time to a hit at the candidate (eq. 1, 12)."""
    candidate = problem.candidates[index]
    return problem.total_s / (problem.reach_s[candidate.point] + candidate.lookup_s)


def accurate_candidates(problem: CompositionProblem) -> frozenset[int]:
    """Those that pass the accuracy filter (eq. 11)."""
    return frozenset(
        index
        for index, candidate in enumerate(problem.candidates)
        if candidate.accuracy >= problem.accuracy
    )


def compose_with_alpha(problem: CompositionProblem, alpha: float) -> Expectation:
    """The chain of greatest summed score α·H + (1 - α)·LG (eq. 13, 14) under eq. 8, 9, 11."""
    chosen = best_chain(
        problem,
        lambda _, v: (
            -alpha * problem.candidates[v].hit_rate - (1 - alpha) * latency_gain(problem, v)
        ),
        accurate_candidates(problem),
    )
    return expect(problem, chosen)


def compose_by_score(
    problem: CompositionProblem, alphas: Sequence[float] = ALPHAS
) -> tuple[float, Expectation]:
    """The α, and its chain, of least expected latency among those that keep eq. 7.

    The empty chain, with the last α, where every chain is slower than the base model.
    """
    rates = pair_rates(problem)
    best_alpha, best = alphas[-1], expect(problem, (), rates)
    for alpha in alphas:
        found = compose_with_alpha(problem, alpha)
        if found.accuracy >= problem.accuracy and found.latency_s < best.latency_s:
            best_alpha, best = alpha, found
    return best_alpha, best
