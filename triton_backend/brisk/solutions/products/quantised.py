"""Quantised products: MatMulInteger, QLinearMatMul; DynamicQuantizeLinear."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from brisk.solutions.base import Kernel, Problem, Solution
from brisk.solutions.binding import constant_tensor
from brisk.solutions.products.quantised_product import BYTES, ByteMatrix, saturate
from brisk.solutions.rules import Rule, RuleFamily, is_dynamic, rank


def _refuse_matrix(
    problem: Problem, matrix: int, zero_points: tuple[int, int], per_column: int | None
) -> str | None:
    """Left operand of bytes, constant matrix of bytes, zero points as ByteMatrix takes them.

    ``zero_points``: the positions of the left and the right one; ``per_column``: of the scales.
    """
    left, right = problem.operand(0), problem.operand(matrix)
    if left is None or right is None or right.constant is None or right.constant.ndim != 2:
        return "the right operand is no constant matrix"
    if right.type.dtype not in BYTES or right.constant.size == 0:
        return f"the matrix is {right.type.dtype} of shape {right.constant.shape}"
    if (rank(problem) or 0) < 2:
        return f"the left operand's rank is {rank(problem)}, at least 2 is known"
    ones, columns = ((), (1,)), ((), (1,), (right.constant.shape[1],))
    left_point, right_point = (problem.operand(position) for position in zero_points)
    if left_point is not None and left_point.type.shape not in ones:
        return "the left operand has a zero point for each row"
    if right_point is not None and right_point.constant is None:
        return "the matrix's zero point is not constant"
    if right_point is not None and right_point.type.shape not in columns:
        return f"the matrix's zero points have shape {right_point.type.shape}"
    scale = None if per_column is None else problem.operand(per_column)
    if scale is not None and scale.type.shape not in columns:
        return f"the matrix's scales have shape {scale.type.shape}"
    return None


def _byte_matrix(problem: Problem, matrix: int, zero_point: int) -> ByteMatrix:
    values, point = problem.operand(matrix), problem.operand(zero_point)
    assert values is not None
    assert values.constant is not None
    return ByteMatrix.make(
        values.constant, None if point is None else point.constant, problem.device
    )


def _check_integer(problem: Problem) -> str | None:
    left = problem.operand(0)
    if left is None or left.type.dtype not in BYTES:
        return "the left operand is not of bytes"
    return _refuse_matrix(problem, 1, (2, 3), None)


def _load_integer(problem: Problem) -> Kernel:
    matrix = _byte_matrix(problem, 1, 3)
    if is_dynamic(problem, 2):
        return lambda left, zero_point: (matrix.product(left, zero_point),)
    zero_point = constant_tensor(problem, 2)
    return lambda left: (matrix.product(left, zero_point),)


def _check_requantised(problem: Problem) -> str | None:
    left = problem.operand(0)
    if left is None or left.constant is not None or left.type.dtype not in BYTES:
        return "the left operand is not of variable bytes"
    if len(problem.operands) != 8 or any(
        operand is None or operand.constant is None for operand in problem.operands[1:]
    ):
        return "scales or zero points are not constant"
    result = problem.operands[7]
    if result is None or result.type.dtype not in BYTES:
        return "the result is not of bytes"
    for position in (1, 4, 6):
        operand = problem.operands[position]
        if operand is None or operand.type.dtype != "float32":
            return "a scale is not float32"
        if position != 4 and operand.type.shape not in ((), (1,)):
            return "a scale for each row"
    if result.type.shape not in ((), (1,)):
        return "a zero point for each row of the result"
    return _refuse_matrix(problem, 3, (2, 5), 4)


def _load_requantised(problem: Problem) -> Kernel:
    matrix = _byte_matrix(problem, 3, 5)
    tensors: list[Any] = [constant_tensor(problem, position) for position in range(8)]
    left_point, result_point = tensors[2], tensors[7]
    factor = (tensors[1] * tensors[4] / tensors[6]).double()
    point, dtype = result_point.double(), result_point.dtype

    def kernel(left: torch.Tensor) -> tuple[torch.Tensor]:
        scaled = matrix.product(left, left_point).to(torch.float64).mul_(factor).add_(point)
        return (saturate(scaled, dtype),)

    return kernel


def quantise_dynamically(
    values: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """DynamicQuantizeLinear: bytes of the same shape, scale and zero point of shape ().

    Precondition: float32, not empty.
    """
    low, high = torch.aminmax(values)
    low, high = low.clamp_(max=0.0), high.clamp_(min=0.0)
    width = high - low
    scale = torch.where(width == 0.0, 1.0, width) / 255.0
    point = (low.neg_() / scale).clamp_(0.0, 255.0).round_()
    quantised = torch.div(values, scale).round_().add_(point).clamp_(0.0, 255.0)
    return quantised.to(torch.uint8), scale, point.to(torch.uint8)


def _check_floats(problem: Problem) -> str | None:
    source = problem.operand(0)
    if source is None or source.constant is not None or source.type.dtype != "float32":
        return "the input is not variable float32"
    return None


def _load_dynamic(problem: Problem) -> Kernel:
    def kernel(source: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if source.numel() == 0:
            raise ValueError("dynamic quantisation of an empty tensor has no scale")
        return quantise_dynamically(source)

    return kernel


class QuantisedProduct(RuleFamily):
    """Products of bytes, accumulated exactly."""

    name = "quantised_product"
    rules: ClassVar[Mapping[tuple[str, str], Rule]] = {
        ("", "MatMulInteger"): Rule(_load_integer, _check_integer),
        ("", "QLinearMatMul"): Rule(_load_requantised, _check_requantised),
        ("", "DynamicQuantizeLinear"): Rule(_load_dynamic, _check_floats),
    }


SOLUTIONS: tuple[Solution, ...] = (QuantisedProduct(),)
