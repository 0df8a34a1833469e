"""The plan: for each layer the solution that will compute it, where, and why not a better one.

Sizes are numbers that the host needs to launch anything at all. Computing them on an accelerator
would stop it at each use, so whatever follows from shapes alone is computed on the CPU.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from brisk.graph.program import Program
from brisk.solutions.base import Problem, Solution, dynamic_operands, make_problem
from brisk.solutions.catalogue import Catalogue, choose

NO_CONSTANTS: Mapping[str, np.ndarray] = {}


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """``passed_over``: better candidates, each with its reason, in order of preference.

    ``moves``: places among the dynamic operands of values that are on the CPU and are needed on
    the problem's device, which is the CPU for layers that only compute sizes.
    """

    problem: Problem
    solution: Solution
    passed_over: list[tuple[Solution, str]]
    moves: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """``layers``: one entry for each of the program, in its order.

    ``constants``: all values that never change, weights without defaults of inputs and captured
    constants. ``slots``: by name of a value, where it is in a frame; ``""`` is every output that
    is left out.
    """

    program: Program
    device: torch.device
    catalogue: Catalogue
    constants: Mapping[str, np.ndarray]
    layers: tuple[LayerPlan, ...]
    slots: Mapping[str, int]


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
    for node in program.layers:
        on_host = any(name in host for name in node.outputs)
        where = torch.device("cpu") if on_host else device
        problem = make_problem(program, node, constants, where)
        solution, passed_over = choose(problem, catalogue)
        layers.append(LayerPlan(problem, solution, passed_over, operands_to_move(problem, host)))
    names = [variable.name for variable in (*program.inputs, *program.outputs)]
    names += [name for name in program.captures if name not in constants]
    names += [name for node in program.layers for name in node.outputs if name]
    slots = {name: index for index, name in enumerate(dict.fromkeys([*names, ""]))}
    return ExecutionPlan(program, device, catalogue, constants, tuple(layers), slots)


def constants_of(program: Program, outer: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    inputs = {variable.name for variable in program.inputs}
    captured = {name: outer[name] for name in program.captures if name in outer}
    own = {name: array for name, array in program.weights.items() if name not in inputs}
    return captured | own


# Which values stay on the CPU while the rest is computed on an accelerator.

_SOURCES = frozenset({"Shape", "Size", "SequenceLength", "OptionalHasElement"})
"""Operators whose result the host knows without looking at the device."""

_ARITHMETIC = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Mod", "Neg", "Abs", "Floor", "Ceil", "Sqrt", "Min", "Max"),
        *("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "And", "Or", "Not"),
        *("Where", "Cast", "Identity", "ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin"),
        *("Gather", "Concat", "Slice", "Split", "Squeeze", "Unsqueeze", "Reshape", "ScatterND"),
    }
)
"""Operators that make sizes of sizes, as long as their constants are sizes too."""

_MOST_SIZES = 64
"""A constant with more elements is data, such as a table of embeddings."""

_NUMBER_POSITIONS: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(("Reshape", "Expand", "Tile", "Squeeze", "Unsqueeze"), frozenset({1})),
    **dict.fromkeys(("TopK", "Split", "OneHot", "CumSum", "CumProd", "Trilu"), frozenset({1})),
    **dict.fromkeys(("SequenceAt", "SequenceErase", "SplitToSequence"), frozenset({1})),
    **dict.fromkeys(("ConstantOfShape", "If"), frozenset({0})),
    **dict.fromkeys(("Pad", "Resize"), frozenset({1, 2, 3})),
    "Slice": frozenset({1, 2, 3, 4}),
    "Range": frozenset({0, 1, 2}),
    "Loop": frozenset({0, 1}),
    "SequenceInsert": frozenset({2}),
}
"""Operands that solutions read as numbers, wherever they are."""


def number_positions(operator: str) -> frozenset[int]:
    """The main operands of ``operator`` that are read as numbers and may stay on the CPU."""
    if operator.startswith("Reduce"):
        return frozenset({1})
    return _NUMBER_POSITIONS.get(operator, frozenset())


def host_values(program: Program, constants: Mapping[str, np.ndarray]) -> frozenset[str]:
    """The values that are computed on the CPU whatever the program's device."""
    host: set[str] = set()
    for node in program.layers:
        numbers = number_positions(node.operator)
        data = [
            name
            for position, name in enumerate(node.inputs)
            if name and name not in constants and position not in numbers
        ]
        follows = node.operator in _ARITHMETIC and data and host.issuperset(data)
        fixed = (constants[name] for name in node.inputs if name in constants)
        follows = follows and all(array.size <= _MOST_SIZES for array in fixed)
        if not node.domain and (node.operator in _SOURCES or follows):
            host.update(filter(None, node.outputs))
    return frozenset(host)


def operands_to_move(problem: Problem, host: Collection[str]) -> tuple[int, ...]:
    """Places among the dynamic operands of host values that the kernel needs on its device."""
    if problem.device.type == "cpu" or not host:
        return ()
    numbers = number_positions(problem.operator)
    stay = {
        id(operand)
        for position, operand in enumerate(problem.operands)
        if operand is not None and position in numbers
    }
    return tuple(
        place
        for place, operand in enumerate(dynamic_operands(problem))
        if operand.name in host and id(operand) not in stay
    )
