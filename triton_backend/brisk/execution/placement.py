"""Which values of a program stay on the CPU while the rest is computed on an accelerator.

Sizes are numbers that the host needs to launch anything at all. Computing them on the device
would stop it at each use, so whatever follows from shapes alone is computed on the CPU.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from brisk.graph.program import Layer, Program
from brisk.solutions.base import Problem, dynamic_operands

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
    for layer in program.layers:
        if is_host_layer(layer, host, constants):
            host.update(name for name in layer.outputs if name)
    return frozenset(host)


def is_host_layer(
    layer: Layer, host: Collection[str], constants: Mapping[str, np.ndarray]
) -> bool:
    """Whether ``layer`` computes sizes from sizes, given the host values before it."""
    main = layer.main
    if main.domain != "":
        return False
    if main.operator in _SOURCES:
        return True
    numbers = number_positions(main.operator)
    data = [
        name
        for position, name in enumerate(main.inputs)
        if name and name not in constants and position not in numbers
    ]
    if any(name in constants and constants[name].size > _MOST_SIZES for name in main.inputs):
        return False
    return main.operator in _ARITHMETIC and bool(data) and all(name in host for name in data)


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
