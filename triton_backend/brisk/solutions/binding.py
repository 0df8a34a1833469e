"""Kernels of functions of all main operands, with constants bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from brisk.solutions.base import Kernel, Problem
from brisk.solutions.values import from_numpy


def constant_tensor(problem: Problem, position: int) -> Any:
    """The constant at a position of the main operator; None where left out or not constant."""
    operand = problem.operand(position)
    if operand is None or operand.constant is None:
        return None
    return from_numpy(operand.constant, problem.device)


def constant_operands(problem: Problem, count: int) -> list[Any]:
    """The first ``count`` main operands as tensors, None where left out or not constant."""
    return [constant_tensor(problem, position) for position in range(count)]


def bound_kernel(
    problem: Problem, compute: Callable[..., torch.Tensor], constants: Sequence[Any]
) -> Kernel:
    """A kernel with one output: ``compute`` of ``len(constants)`` operands.

    ``constants``: by position, None where the operand comes with each call or is left out; a
    left-out one reaches ``compute`` as None.
    """
    present = [operand is not None and operand.constant is None for operand in problem.operands]
    given = [position for position, is_given in enumerate(present) if is_given]
    rest = tuple(constants[1:])
    if given == [0]:
        return lambda source: (compute(source, *rest),)
    if len(given) == len(constants):
        return lambda *operands: (compute(*operands),)

    def kernel(*operands: torch.Tensor) -> Sequence[torch.Tensor]:
        main = list(constants)
        for position, operand in zip(given, operands, strict=True):
            main[position] = operand
        return (compute(*main),)

    return kernel
