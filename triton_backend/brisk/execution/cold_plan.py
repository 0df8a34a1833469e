"""Cold plans: for each layer the solution that a start uses, where the warm one costs too much."""

from __future__ import annotations

import dataclasses

from brisk.execution.machine_costs import NOTHING_KNOWN, MachineCosts
from brisk.execution.plan import LayerPlan, Plan
from brisk.solutions.base import Pattern, Solution
from brisk.solutions.catalogue import Catalogue

_PRODUCTS = (Pattern.POINTWISE, Pattern.GEMM)
"""Whose resident solutions compute with the matrix as the model has it."""


def cold_solutions(planned: LayerPlan, catalogue: Catalogue) -> list[Solution]:
    """The solutions of a layer that load without compiling, best first; the warm one if none."""
    fit = [
        solution
        for solution, verdict in catalogue.consider(planned.problem)
        if verdict.ok and not solution.compiles
    ]
    return fit or [planned.solution]


def raw_layer(
    planned: LayerPlan, catalogue: Catalogue, costs: MachineCosts = NOTHING_KNOWN
) -> LayerPlan:
    """The layer for a start from the model itself: weights as they are where that costs little.

    So it is for pointwise convolutions and linear layers: a product with the plain matrix takes
    some 5 to 40 percent longer than one whose weights are laid out for it, and that takes as long
    as one to three runs; where this machine's ``costs`` say otherwise, they count. Others are laid
    out as it is quickest.
    """
    fit = cold_solutions(planned, catalogue)
    quick = next((solution for solution in fit if not solution.transforms_long), fit[0])
    plain = next((each for each in fit if each.resident and each.pattern in _PRODUCTS), quick)
    if costs.favours(quick, plain, planned.problem):
        plain = quick
    return dataclasses.replace(planned, solution=plain)


def cold_layer(planned: LayerPlan, catalogue: Catalogue) -> LayerPlan:
    """The layer with the first solution that loads without compiling."""
    if not planned.solution.compiles:
        return planned
    return dataclasses.replace(planned, solution=cold_solutions(planned, catalogue)[0])


def cold_plan(plan: Plan, catalogue: Catalogue) -> Plan:
    """The plan for a start without measured costs."""
    layers = tuple(cold_layer(planned, catalogue) for planned in plan.layers)
    return dataclasses.replace(plan, layers=layers)
