"""Kernels of functions of all main operands: constants bound, the epilogue applied behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from brisk.solutions.base import Kernel, Problem
from brisk.solutions.epilogue import finish_epilogue
from brisk.solutions.values import from_numpy


def constant_operands(problem: Problem, count: int) -> list[Any]:
    """The first ``count`` main operands as tensors, None where left out or not constant."""
    operands = [problem.operand(position) for position in range(count)]
    return [
        None
        if operand is None or operand.constant is None
        else from_numpy(operand.constant, problem.device)
        for operand in operands
    ]


def bound_kernel(
    problem: Problem, compute: Callable[..., torch.Tensor], constants: Sequence[Any]
) -> Kernel:
    """A kernel with one output: the epilogue behind ``compute`` of ``len(constants)`` operands.

    ``constants``: by position, None where the operand comes with each call or is left out; a
    left-out one reaches ``compute`` as None.
    """
    present = [operand is not None and operand.constant is None for operand in problem.operands]
    given = [position for position, is_given in enumerate(present) if is_given]
    finish = finish_epilogue(problem)
    taken = len(given)
    rest = tuple(constants[1:])
    if given == [0] and finish is None:
        return lambda source: (compute(source, *rest),)
    if given == [0] and finish is not None:
        return lambda source, *operands: (finish(compute(source, *rest), operands),)
    if finish is None and taken == len(constants):
        return lambda *operands: (compute(*operands),)

    def kernel(*operands: torch.Tensor) -> Sequence[torch.Tensor]:
        main = list(constants)
        for position, operand in zip(given, operands):  # noqa: B905  # the rest is epilogue
            main[position] = operand
        result = compute(*main)
        return (result if finish is None else finish(result, operands[taken:]),)

    return kernel
