"""The integer program that both objectives share: the best chain of caches, solved exactly.

The paper's indicators b (variant j at layer i is chosen) and c (layer j is the next cache after
layer i) multiply each other in eq. 5, 7, 9 and 10. Here one binary variable stands for "v is the
next cache after u", u and v being variants at layers. A chain is a path from start to end through
such pairs, and everything that depends on two neighbours is a cost of their pair: what was
quadratic is linear, without any relaxation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import csr_matrix

from brisk.errors import InternalError
from brisk.exits.composition.expectation import PairRates
from brisk.exits.composition.problem import CompositionProblem

TIME_LIMIT_S = 30.0
"""For one program; the paper's took about five seconds."""

PairCost = Callable[[int, int], float]
"""Cost of candidate (second) directly behind row (first); the last row is the start."""


def best_chain(
    problem: CompositionProblem,
    cost: PairCost,
    eligible: frozenset[int],
    rates: PairRates | None = None,
) -> tuple[int, ...]:
    """The chain of ``eligible`` candidates with the least sum of pair costs; may be empty.

    Holds memory (eq. 8), one look-up at a time (eq. 9) and the burden of a miss; with ``rates``
    also the cumulative accuracy (eq. 7). Raises InternalError where the solver gives up.
    """
    pairs = list(_pairs(problem, eligible))
    start = end = len(problem.candidates)
    costs = np.array([0.0 if v == end else cost(u, v) for u, v in pairs])
    constraints = [_one_path(pairs, start, end)]
    if problem.memory_budget_bytes is not None:
        memory = [0 if v == end else problem.candidates[v].memory_bytes for _, v in pairs]
        scale = max(problem.memory_budget_bytes, 1)
        row = np.array([memory], dtype=np.float64) / scale
        constraints.append(LinearConstraint(row, -np.inf, problem.memory_budget_bytes / scale))
    if problem.most_burden_s is not None:
        burden = [0.0 if v == end else problem.candidates[v].burden_s for _, v in pairs]
        row = np.array([burden]) / (problem.most_burden_s or 1.0)
        most = 1.0 if problem.most_burden_s else 0.0
        constraints.append(LinearConstraint(row, -np.inf, most))
    if rates is not None:
        wrong = [0.0 if v == end else float(rates.wrong[u, v]) for u, v in pairs]
        constraints.append(LinearConstraint(np.array([wrong]), -np.inf, 1 - problem.accuracy))
    solution = milp(
        costs / (np.abs(costs).max(initial=0.0) or 1.0),
        constraints=constraints,
        integrality=np.ones(len(pairs)),
        bounds=(0, 1),
        options={"time_limit": TIME_LIMIT_S},
    )
    if solution.x is None:
        raise InternalError(f"the composition solver gave up: {solution.message}")
    taken = {u: v for (u, v), value in zip(pairs, solution.x, strict=True) if value > 0.5}
    return tuple(_follow(taken, start, end))


def _pairs(problem: CompositionProblem, eligible: frozenset[int]) -> Iterator[tuple[int, int]]:
    """All (u, v) that may follow each other; start and end have the number of candidates."""
    outside = len(problem.candidates)
    ordered = sorted(eligible, key=lambda index: problem.candidates[index].point)
    yield outside, outside
    for u in ordered:
        yield outside, u
        if problem.may_follow(u, None):
            yield u, outside
        for v in ordered:
            if problem.may_follow(u, v):
                yield u, v


def _one_path(pairs: list[tuple[int, int]], start: int, end: int) -> LinearConstraint:
    """Each candidate is left as often as it is entered; the start is left once."""
    rows, columns, values = [], [], []
    for column, (u, v) in enumerate(pairs):
        rows.append(u)
        columns.append(column)
        values.append(1.0)
        if v != end:
            rows.append(v)
            columns.append(column)
            values.append(-1.0)
    balance = np.zeros(start + 1)
    balance[start] = 1.0
    matrix = csr_matrix((values, (rows, columns)), shape=(start + 1, len(pairs)))
    return LinearConstraint(matrix, balance, balance)


def _follow(taken: dict[int, int], start: int, end: int) -> Iterator[int]:
    index = taken[start]
    while index != end:
        yield index
        index = taken[index]
