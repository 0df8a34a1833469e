"""Composition by the paper's score (GATI, A.1.2: eq. 11 to 14), α chosen by a sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from brisk.exits.composition.chains import best_chain
from brisk.exits.composition.expectation import Expectation, expect, pair_rates, saving_s
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


# Greedy compositions, kept to measure the exact ones against (GATI, A.2.1, Fig. 25).


def compose_by_latency_gain(problem: CompositionProblem) -> Expectation:
    """Take the candidate of greatest latency gain that still fits, again and again."""
    return _compose(problem, lambda index: latency_gain(problem, index))


def compose_by_hit_rate(problem: CompositionProblem) -> Expectation:
    """Take the candidate of greatest hit rate that still fits, again and again."""
    return _compose(problem, lambda index: problem.candidates[index].hit_rate)


def _compose(problem: CompositionProblem, merit: Callable[[int], float]) -> Expectation:
    chosen: list[int] = []
    for index in sorted(accurate_candidates(problem), key=lambda index: (-merit(index), index)):
        longer = sorted([*chosen, index], key=lambda index: problem.candidates[index].point)
        if problem.fits(longer):
            chosen = longer
    return expect(problem, chosen)


# Composition by what is wanted: the least expected latency (GATI, eq. 10, exactly).


def compose_by_expected_latency(problem: CompositionProblem) -> Expectation:
    """The chain of least mean latency that keeps accuracy (eq. 7), memory (8) and order (9).

    The paper holds this intractable and maximises a score instead; as a path problem over pairs
    it is linear (see ``chains``). The chain is empty where every cache would slow the model down.
    """
    rates = pair_rates(problem)
    chosen = best_chain(
        problem,
        lambda u, v: saving_s(problem, rates, u, v),
        frozenset(range(len(problem.candidates))),
        rates,
    )
    return expect(problem, chosen, rates)
