"""Operators of bytes, by floating ones that are exact.

Bytes less their zero points are small integers; a float64 sum of their products is exact, in any
order, a float32 one while it stays below 2 ** 24.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from brisk.solutions.base import Kernel, Problem
from brisk.solutions.images.convolution import convolution, refuse_axes
from brisk.solutions.rules import Rule, bind, calls, constant_tensor, several, takes
from brisk.solutions.values import TORCH_DTYPES

BYTES = frozenset({"int8", "uint8"})
_SCALES = frozenset({"float32"})

_EXACT_IN_FLOAT32 = 1 << 24

_GREATEST_INPUT = 255


def _saturate(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Round half to even and saturate to bytes; overwrites ``values``."""
    limits = torch.iinfo(dtype)
    return values.round_().clamp_(limits.min, limits.max).to(dtype)


def _refuse_several(problem: Problem, *positions: int) -> str | None:
    """Why the operands at ``positions`` are not of one element each."""
    for position in positions:
        operand = problem.operand(position)
        if operand is not None and operand.type.shape not in ((), (1,)):
            return f"'{operand.name}' of shape {operand.type.shape} has more than one element"
    return None


# Products.


def _product(left: Any, left_point: Any, right: Any, right_point: Any) -> Tensor:
    """float64, of operands less their zero points."""
    left = left.double() if left_point is None else left.double() - left_point
    right = right.double() if right_point is None else right.double() - right_point
    return torch.matmul(left, right)


def _refuse_vectors(problem: Problem, *positions: int) -> str | None:
    ranks = [problem.rank(position) or 0 for position in positions]
    return f"operands of rank {ranks}, at least 2 is known" if min(ranks) < 2 else None


def _check_integer(problem: Problem) -> str | None:
    reason = takes(BYTES)(problem) or _refuse_vectors(problem, 0, 1)
    return reason or _refuse_several(problem, 2)


def _multiply(
    left: Tensor, right: Tensor, left_point: Any = None, right_point: Any = None
) -> Tensor:
    return _product(left, left_point, right, right_point).to(torch.int32)


def _check_requantised(problem: Problem) -> str | None:
    """One scale and zero point, or one for each column of the right operand."""
    dtypes = (BYTES, _SCALES, BYTES, BYTES, _SCALES, BYTES, _SCALES, BYTES)
    reason = takes(*dtypes)(problem) or _refuse_vectors(problem, 0, 3)
    return reason or _refuse_several(problem, 1, 2, 6, 7)


def _multiply_requantised(
    left: Any, left_scale: Any, left_point: Any, right: Any, right_scale: Any, right_point: Any,
    scale: Tensor, point: Tensor
) -> Tensor:  # fmt: skip
    factor = (left_scale * right_scale / scale).double()
    exact = _product(left, left_point, right, right_point)
    return _saturate(exact.mul_(factor).add_(point), point.dtype)


def _quantise_dynamically(x: Tensor) -> tuple[Tensor, ...]:
    """Bytes of the same shape, scale and zero point of shape ()."""
    if x.numel() == 0:
        raise ValueError("dynamic quantisation of an empty tensor has no scale")
    low, high = torch.aminmax(x)
    low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    width = high - low
    scale = torch.where(width == 0.0, 1.0, width) / 255.0
    point = (-low / scale).clamp(0.0, 255.0).round()
    quantised = torch.div(x, scale).round_().add_(point).clamp_(0.0, 255.0)
    return quantised.to(torch.uint8), scale, point.to(torch.uint8)


# Scaling to bytes and back.


def _slices(problem: Problem) -> tuple[int, ...] | str:
    """The shape that scales take to broadcast over the input; or why there is none."""
    known, scale = problem.rank(), problem.operand(1)
    if scale is None or scale.type.rank is None or known is None:
        return "a rank is not known"
    if problem.attribute("block_size", 0):
        return "scales for blocks"
    if scale.type.rank == 0 or scale.type.shape == (1,):
        return ()
    if scale.type.rank != 1:
        return f"scales of rank {scale.type.rank}"
    axis = int(problem.attribute("axis", 1))
    axis += known if axis < 0 else 0
    if not 0 <= axis < known:
        return f"no axis {axis} in an input of rank {known}"
    return (-1,) + (1,) * (known - axis - 1)


def _check_scaling(problem: Problem) -> str | None:
    """From float32 to bytes or back."""
    result = problem.outputs[0].dtype
    floats, whole = problem.dtype(), result
    if problem.operator == "DequantizeLinear":
        floats, whole = result, problem.dtype()
    if {floats, problem.dtype(1)} != {"float32"}:
        return f"scales of {problem.dtype(1)} and values of {floats}, float32 is known"
    if whole not in BYTES or (problem.operand(2) is not None and problem.dtype(2) != whole):
        return f"{whole} with zero points of {problem.dtype(2)}, int8 and uint8 are known"
    if problem.attribute("precision", 0) not in (0, 1):
        return "computed in another precision than float32"
    slices = _slices(problem)
    return slices if isinstance(slices, str) else None


def _load_scaling(problem: Problem) -> Kernel:
    shape: Any = _slices(problem)
    dtype = TORCH_DTYPES[str(problem.outputs[0].dtype)]

    def quantise(source: Any, scale: Any, point: Any = None) -> Tensor:
        scaled = torch.div(source, scale.reshape(shape)).round_()
        if point is not None:
            scaled.add_(point.reshape(shape))
        return _saturate(scaled, dtype)

    def dequantise(source: Any, scale: Any, point: Any = None) -> Tensor:
        values: Tensor = source.to(torch.float32)
        if point is not None:
            values.sub_(point.reshape(shape))
        return values.mul_(scale.reshape(shape))

    return bind(problem, quantise if problem.operator == "QuantizeLinear" else dequantise)


# Convolution.


def _check_convolution(problem: Problem) -> str | None:
    """Constant weights, scales and zero points, per channel of the result or one."""
    is_requantised = problem.operator == "QLinearConv"
    weight, single = (3, (1, 2, 6, 7)) if is_requantised else (1, (2,))
    if not problem.is_dynamic(0) or problem.dtype() not in BYTES:
        return "the input is not of variable bytes"
    for operand in problem.operands[1:]:
        if operand is not None and operand.constant is None:
            return f"'{operand.name}' is not constant"
    if problem.dtype(weight) not in BYTES:
        return "the weights are not of bytes"
    return refuse_axes(problem) or _refuse_several(problem, *single)


def _exact_weight(problem: Problem) -> Tensor:
    """Less its zero points, float32 where all sums are exact in it, else float64."""
    positions = (3, 5) if problem.operator == "QLinearConv" else (1, 3)
    weight, point = (problem.operand(position) for position in positions)
    integers = weight.constant.astype(np.int64)  # type: ignore[union-attr]  # checked
    if point is not None and point.constant is not None:
        columns = (-1,) + (1,) * (integers.ndim - 1)
        integers = integers - point.constant.astype(np.int64).reshape(columns)
    rows = np.abs(integers).sum(tuple(range(1, integers.ndim)))
    is_exact = int(rows.max(initial=0)) * _GREATEST_INPUT < _EXACT_IN_FLOAT32
    exact = integers.astype(np.float32 if is_exact else np.float64)
    return torch.from_numpy(exact).to(problem.device)


def _load_convolution(problem: Problem) -> Kernel:
    """Padding comes after the zero point is subtracted, as the definition has it."""
    convolve, weight = convolution(problem), _exact_weight(problem)
    point = constant_tensor(problem, 2)
    requantise = _requantiser(problem) if problem.operator == "QLinearConv" else None

    def kernel(source: Tensor) -> tuple[Tensor]:
        values = source.to(weight.dtype)
        if point is not None:
            values.sub_(point)
        exact = convolve(values, weight)
        return (exact.to(torch.int32) if requantise is None else requantise(exact),)

    return kernel


def _requantiser(problem: Problem) -> Callable[[Tensor], Tensor]:
    """From exact sums to bytes: bias added, scaled, rounded and saturated."""
    tensors: list[Any] = [constant_tensor(problem, position) for position in range(9)]
    columns = (-1,) + (1,) * ((problem.rank() or 0) - 2)
    factor = (tensors[1] * tensors[4] / tensors[6]).double().reshape(columns)
    point, bias = tensors[7], tensors[8]
    offset = 0 if bias is None else bias.double().reshape(columns)

    def finish(exact: Tensor) -> Tensor:
        return _saturate((exact.double() + offset).mul_(factor).add_(point), point.dtype)

    return finish


QUANTISED: dict[str, Rule] = {
    "MatMulInteger": Rule(calls(_multiply), _check_integer),
    "QLinearMatMul": Rule(calls(_multiply_requantised), _check_requantised),
    "DynamicQuantizeLinear": Rule(several(calls(_quantise_dynamically)), takes({"float32"})),
    "QuantizeLinear": Rule(_load_scaling, _check_scaling),
    "DequantizeLinear": Rule(_load_scaling, _check_scaling),
    "QLinearConv": Rule(_load_convolution, _check_convolution),
    "ConvInteger": Rule(_load_convolution, _check_convolution),
}
