"""Greedy compositions, kept to measure the exact ones against (GATI, A.2.1, Fig. 25)."""

from __future__ import annotations

from collections.abc import Callable

from brisk.exits.composition.expectation import Expectation, expect
from brisk.exits.composition.problem import CompositionProblem
from brisk.exits.composition.score import accurate_candidates, latency_gain


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
