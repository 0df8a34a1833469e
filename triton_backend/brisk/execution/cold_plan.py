"""Cold plans: for each layer the solution that a start uses, where the warm one costs too much."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from brisk.execution.machine_costs import NOTHING_KNOWN, MachineCosts
from brisk.execution.plan import LayerPlan, Plan
from brisk.solutions.base import Pattern, Solution
from brisk.solutions.catalogue import Catalogue

_PRODUCTS = (Pattern.POINTWISE, Pattern.GEMM)
"""Whose resident solutions compute with the matrix as the model has it."""


def cold_solutions(planned: LayerPlan, catalogue: Catalogue) -> list[Solution]:
    """The solutions of a layer that load without compiling, best first; the warm one if none."""
    return list(_fitting(planned, catalogue, _any)) or [planned.solution]


def _fitting(
    planned: LayerPlan, catalogue: Catalogue, wanted: Callable[[Solution], bool]
) -> Iterator[Solution]:
    """Those of them that are ``wanted``; what the plan knows is not checked again."""
    refused = {solution for solution, _ in planned.passed_over}
    for solution in catalogue.candidates(planned.problem):
        if solution.compiles or solution in refused or not wanted(solution):
            continue
        if solution is planned.solution or solution.check(planned.problem).ok:
            yield solution


def _any(solution: Solution) -> bool:
    return True


def _is_quick(solution: Solution) -> bool:
    return not solution.transforms_long


def _is_plain(solution: Solution) -> bool:
    return solution.resident and solution.pattern in _PRODUCTS


def raw_layer(
    planned: LayerPlan, catalogue: Catalogue, costs: MachineCosts = NOTHING_KNOWN
) -> LayerPlan:
    """The layer for a start from the model itself: weights as they are where that costs little.

    So it is for pointwise convolutions and linear layers: a product with the plain matrix takes
    some 5 to 40 percent longer than one whose weights are laid out for it, and that takes as long
    as one to three runs; where this machine's ``costs`` say otherwise, they count. Others are laid
    out as it is quickest.
    """
    best = next(_fitting(planned, catalogue, _any), planned.solution)
    quick = next(_fitting(planned, catalogue, _is_quick), best)
    plain = next(_fitting(planned, catalogue, _is_plain), quick)
    if costs.favours(quick, plain, planned.problem):
        plain = quick
    return dataclasses.replace(planned, solution=plain)


def cold_layer(planned: LayerPlan, catalogue: Catalogue) -> LayerPlan:
    """The layer with the first solution that loads without compiling."""
    if not planned.solution.compiles:
        return planned
    best = next(_fitting(planned, catalogue, _any), planned.solution)
    return dataclasses.replace(planned, solution=best)


def cold_plan(plan: Plan, catalogue: Catalogue) -> Plan:
    """The plan for a start without measured costs."""
    layers = tuple(cold_layer(planned, catalogue) for planned in plan.layers)
    return dataclasses.replace(plan, layers=layers)
