"""What a chain of caches does on average (GATI, eq. 5, 7 and 10).

The paper's eq. 5 subtracts from a cache's hit rate the *effective* hit rate of the one before.
With three caches that gives the first one's hits back to the third. Here the whole of the
earlier hits is subtracted, which is what eq. 7 and eq. 10 need to sum to one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from brisk.exits.composition.problem import CompositionProblem


@dataclass(frozen=True, slots=True)
class Expectation:
    """Of a chain: mean latency (eq. 10), agreement with the base model (eq. 7), memory (eq. 8).

    ``answered``: each cache's effective hit rate (eq. 5), in the chain's order.
    """

    chosen: tuple[int, ...]
    latency_s: float
    accuracy: float
    memory_bytes: int
    answered: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PairRates:
    """Of candidate ``v`` with ``u`` as the cache before it, [candidates + 1, candidates].

    The last row is for no cache before. ``answered``: share of all inputs that v answers;
    ``wrong``: share that it answers and the base model would answer otherwise; ``reached``: share
    that is looked up at v.
    """

    answered: np.ndarray
    wrong: np.ndarray
    reached: np.ndarray


def pair_rates(problem: CompositionProblem) -> PairRates:
    """Effective rates of every pair.

    With outcomes: counted, an input that ``u`` answers being gone for all later caches. Without:
    hits are nested, so a cache answers what its hit rate exceeds the one before by.
    """
    if problem.outcomes is None:
        return _nested(problem)
    hits = problem.outcomes.hits.astype(np.float64)
    wrong = hits * ~problem.outcomes.right
    missed = np.vstack([1 - hits, np.ones((1, hits.shape[1]))])
    count = max(hits.shape[1], 1)
    reached = np.repeat(missed.mean(1, keepdims=True), len(hits), axis=1)
    return PairRates(missed @ hits.T / count, missed @ wrong.T / count, reached)


def _nested(problem: CompositionProblem) -> PairRates:
    rates = np.array([candidate.hit_rate for candidate in problem.candidates])
    accuracies = np.array([candidate.accuracy for candidate in problem.candidates])
    before = np.append(rates, 0.0)[:, None]
    answered = np.maximum(rates[None, :] - before, 0.0)
    reached = np.repeat(1 - before, len(rates), axis=1)
    return PairRates(answered, answered * (1 - accuracies), reached)


def expect(
    problem: CompositionProblem, chosen: Sequence[int], rates: PairRates | None = None
) -> Expectation:
    """The expectation of ``chosen``, indices of candidates in the order of their points."""
    rates = pair_rates(problem) if rates is None else rates
    latency_s, wrong = problem.total_s, 0.0
    answered = []
    before = len(problem.candidates)
    for index in chosen:
        share = float(rates.answered[before, index])
        latency_s += saving_s(problem, rates, before, index)
        wrong += float(rates.wrong[before, index])
        answered.append(share)
        before = index
    memory_bytes = sum(problem.candidates[index].memory_bytes for index in chosen)
    return Expectation(tuple(chosen), latency_s, 1 - wrong, memory_bytes, tuple(answered))


def expect_counted(problem: CompositionProblem, chosen: Sequence[int]) -> Expectation:
    """As ``expect``, but every input counts once however many caches would answer it.

    Rates of pairs forget the caches before the last one, so a chain of three may seem to answer
    an input twice. Without outcomes there is nothing to count: the same as ``expect``.
    """
    if problem.outcomes is None:
        return expect(problem, chosen)
    waiting = np.ones(problem.outcomes.hits.shape[1], bool)
    latency_s, wrong = problem.total_s, 0.0
    answered = []
    for index in chosen:
        candidate = problem.candidates[index]
        hits = problem.outcomes.hits[index] & waiting
        end_s = problem.reach_s[candidate.point] + candidate.lookup_s
        latency_s += float(waiting.mean()) * candidate.burden_s
        latency_s += float(hits.mean()) * (end_s - problem.total_s)
        wrong += float((hits & ~problem.outcomes.right[index]).mean())
        answered.append(float(hits.mean()))
        waiting &= ~hits
    memory_bytes = sum(problem.candidates[index].memory_bytes for index in chosen)
    return Expectation(tuple(chosen), latency_s, 1 - wrong, memory_bytes, tuple(answered))


def saving_s(problem: CompositionProblem, rates: PairRates, before: int, index: int) -> float:
    """What candidate ``index`` behind row ``before`` adds to the mean latency; below 0: it saves.

    A hit ends after reach and look-up instead of at the end; every look-up is a burden.
    """
    candidate = problem.candidates[index]
    end_s = problem.reach_s[candidate.point] + candidate.lookup_s
    hit_s = float(rates.answered[before, index]) * (end_s - problem.total_s)
    return hit_s + float(rates.reached[before, index]) * candidate.burden_s
