"""The plan: for each layer the solution that will compute it, and why not a better one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from brisk.execution.placement import host_values, operands_to_move
from brisk.graph.program import Program
from brisk.solutions.base import Problem, Solution, make_problem
from brisk.solutions.catalogue import Catalogue

NO_CONSTANTS: Mapping[str, np.ndarray] = {}
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """``passed_over``: better candidates, each with its reason, in order of preference.

    ``moves``: places among the dynamic operands of values that are on the CPU and are needed on
    the problem's device, which is the CPU for layers that only compute sizes.
    """

    problem: Problem
    solution: Solution
    passed_over: tuple[tuple[Solution, str], ...]
    moves: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """``layers``: one entry for each of the program, in its order.

    ``constants``: all values that never change, weights without defaults of inputs and captured
    constants.
    """

    program: Program
    device: torch.device
    constants: Mapping[str, np.ndarray]
    layers: tuple[LayerPlan, ...]


def make_plan(
    program: Program,
    device: torch.device,
    catalogue: Catalogue,
    outer_constants: Mapping[str, np.ndarray] = NO_CONSTANTS,
) -> ExecutionPlan:
    """Choose a solution for every layer.

    ``outer_constants``: for a body, what it captures that never changes. Raises
    UnsupportedOperatorError naming the first layer that has none.
    """
    constants = constants_of(program, outer_constants)
    host = host_values(program, constants) if device.type != "cpu" else frozenset()
    layers = []
    for layer in program.layers:
        on_host = any(name in host for name in layer.outputs)
        problem = make_problem(program, layer, constants, _CPU if on_host else device)
        solution, passed_over = catalogue.choose(problem)
        moves = operands_to_move(problem, host)
        layers.append(LayerPlan(problem, solution, tuple(passed_over), moves))
    return ExecutionPlan(program, device, constants, tuple(layers))


def constants_of(program: Program, outer: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    inputs = {variable.name for variable in program.inputs}
    captured = {name: outer[name] for name in program.captures if name in outer}
    own = {name: array for name, array in program.weights.items() if name not in inputs}
    return captured | own
