"""Making problems: what one layer of a program asks of a kernel on a device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from brisk.graph.program import Layer, Program, ValueType
from brisk.solutions.base import Operand, Problem
from brisk.solutions.values import dtype_name


def make_problem(
    program: Program, layer: Layer, constants: Mapping[str, np.ndarray], device: torch.device
) -> Problem:
    """The problem of ``layer``; ``constants`` are all values that never change, by name."""

    def operand(name: str) -> Operand:
        constant = constants.get(name)
        if constant is None:
            return Operand(name, program.type_of(name), None)
        return Operand(name, ValueType(dtype_name(constant), constant.shape), constant)

    return Problem(
        layer=layer,
        operands=tuple(operand(name) if name else None for name in layer.main.inputs),
        captures=tuple(operand(name) for name in layer.captures),
        outputs=tuple(program.type_of(name) for name in layer.outputs),
        device=device,
    )


def dynamic_operands(problem: Problem) -> tuple[Operand, ...]:
    """The operands that a kernel is called with, in its argument order."""
    present = [operand for operand in problem.operands if operand is not None]
    every = (*present, *problem.captures)
    return tuple(operand for operand in every if operand.constant is None)
