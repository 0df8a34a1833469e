"""Products with a constant matrix: Gemm, MatMul and Brisk's Linear on any device.

The matrix is kept as (rows, columns) in memory order, so that BLAS reads it along its rows: on a
CPU that is up to twice as fast for a few input rows. Small matrices stored the other way round are
copied; for large ones, which are bound by memory either way, a view serves. Bias and
factors of Gemm are folded ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from brisk.solutions.base import Kernel, LoadContext, Pattern, Problem, Solution, Verdict, refused
from brisk.solutions.epilogue import (
    Finish,
    check_epilogue,
    constant_tensor,
    finish_epilogue,
    number,
)
from brisk.solutions.rules import FLOATS

MOST_COPIED_ELEMENTS = 1 << 21

_nn: Any = torch._C._nn


class ConstantMatrix(Solution):
    """A variable left operand times a constant matrix, plus a constant row or nothing."""

    name = "constant_matrix"
    pattern = Pattern.GEMM

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("", "Gemm"), ("", "MatMul"), ("brisk", "Linear")})

    def check(self, problem: Problem) -> Verdict:
        source, matrix, bias = (problem.operand(position) for position in range(3))
        if source is None or matrix is None:
            return refused("an operand is missing")
        if source.constant is not None or matrix.constant is None:
            return refused("not a variable times a constant")
        if bias is not None and bias.constant is None:
            return refused("the bias is not constant")
        dtypes = {operand.type.dtype for operand in (source, matrix, bias) if operand is not None}
        if len(dtypes) != 1 or source.type.dtype not in FLOATS:
            return refused(
                f"dtypes {sorted(map(str, dtypes))}, one of {', '.join(sorted(FLOATS))} is known"
            )
        if matrix.constant.ndim != 2 or matrix.constant.size == 0:
            return refused(f"the constant has shape {matrix.constant.shape}, not that of a matrix")
        if source.type.rank is None or source.type.rank < 2:
            return refused(f"the input's rank is {source.type.rank}, at least 2 is known")
        if problem.attributes.get("transA", 0):
            return refused("the input is transposed")
        columns = matrix.constant.shape[0 if problem.attributes.get("transB", 0) else 1]
        if bias is not None and bias.type.shape not in ((), (1,), (columns,), (1, columns)):
            return refused(f"a bias of shape {bias.type.shape} is more than one row")
        return check_epilogue(problem)

    def transform(self, problem: Problem) -> Mapping[str, torch.Tensor]:
        """``matrix``: (rows, columns); ``bias``: (columns,), if any."""
        matrix, bias = constant_tensor(problem, 1), constant_tensor(problem, 2)
        assert matrix is not None
        if problem.attributes.get("transB", 0):
            matrix = matrix.t()
        if matrix.numel() <= MOST_COPIED_ELEMENTS:
            matrix = matrix.contiguous()
        alpha = number(problem.attributes, "alpha", 1.0)
        if alpha != 1.0:
            matrix = matrix * alpha
        if bias is None:
            return {"matrix": matrix}
        beta = number(problem.attributes, "beta", 1.0)
        row = bias.reshape(-1).expand(matrix.shape[1])
        return {"matrix": matrix, "bias": row * beta if beta != 1.0 else row.contiguous()}

    def transformed_operands(self, problem: Problem) -> frozenset[int]:
        return frozenset({1, 2})

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        source = problem.operand(0)
        assert source is not None
        matrix, bias = weights["matrix"], weights.get("bias")
        finish = finish_epilogue(problem)
        if source.type.rank != 2:
            return _stacked(matrix, bias, finish)
        if bias is None:
            return _plain(matrix, finish)
        if [step.operator for step in problem.epilogue] == ["Relu"]:
            return lambda source: (torch._addmm_activation(bias, source, matrix),)
        return _with_bias(matrix, bias, finish)


def _with_bias(matrix: torch.Tensor, bias: torch.Tensor, finish: Finish | None) -> Kernel:
    addmm = torch.addmm
    if finish is None:
        return lambda source: (addmm(bias, source, matrix),)
    return lambda source, *operands: (finish(addmm(bias, source, matrix), operands),)


def _plain(matrix: torch.Tensor, finish: Finish | None) -> Kernel:
    if finish is None:
        return lambda source: (torch.mm(source, matrix),)
    return lambda source, *operands: (finish(torch.mm(source, matrix), operands),)


def _stacked(matrix: torch.Tensor, bias: torch.Tensor | None, finish: Finish | None) -> Kernel:
    """For inputs of rank 3 and more: torch folds all but the last dimension into one."""
    linear, transposed = _nn.linear, matrix.t()
    if finish is None:
        return lambda source: (linear(source, transposed, bias),)
    return lambda source, *operands: (finish(linear(source, transposed, bias), operands),)


SOLUTIONS: tuple[Solution, ...] = (ConstantMatrix(),)
