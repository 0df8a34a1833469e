"""Composition by what is wanted: the least expected latency (GATI, eq. 10, exactly)."""

from __future__ import annotations

from brisk.exits.composition.chains import best_chain
from brisk.exits.composition.expectation import Expectation, expect, pair_rates, saving_s
from brisk.exits.composition.problem import CompositionProblem


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
