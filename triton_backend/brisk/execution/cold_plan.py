"""Cold plans: for each layer the solution that a start uses, where the warm one costs too much."""

from __future__ import annotations

import dataclasses

from brisk.execution.plan import LayerPlan, Plan
from brisk.solutions.base import Solution
from brisk.solutions.catalogue import Catalogue


def cold_solutions(planned: LayerPlan, catalogue: Catalogue) -> list[Solution]:
    """The solutions of a layer that load without compiling, best first; the warm one if none."""
    fit = [
        solution
        for solution, verdict in catalogue.consider(planned.problem)
        if verdict.ok and not solution.compiles
    ]
    return fit or [planned.solution]


def cold_layer(planned: LayerPlan, catalogue: Catalogue) -> LayerPlan:
    """The layer with the first solution that loads without compiling."""
    if not planned.solution.compiles:
        return planned
    return dataclasses.replace(planned, solution=cold_solutions(planned, catalogue)[0])


def cold_plan(plan: Plan, catalogue: Catalogue) -> Plan:
    """The plan for a start without measured costs."""
    layers = tuple(cold_layer(planned, catalogue) for planned in plan.layers)
    return dataclasses.replace(plan, layers=layers)
