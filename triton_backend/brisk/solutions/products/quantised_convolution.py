"""QLinearConv and ConvInteger by a floating convolution that is exact.

Bytes less their zero points are small integers; a float32 sum of their products is exact, in any
order, while it stays below 2 ** 24, a float64 one always. Which is needed follows from the
weights. Padding with zeros comes after the zero point is subtracted, as the definition has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from brisk.solutions.base import (
    APPLIES,
    Applicability,
    Kernel,
    LoadContext,
    Problem,
    Solution,
    refused,
)
from brisk.solutions.binding import constant_tensor
from brisk.solutions.images.convolution_geometry import (
    Geometry,
    pad_amounts,
    read_geometry,
    weight_position,
)
from brisk.solutions.products.quantised_product import BYTES, saturate

_CALLS: Mapping[int, Callable[..., torch.Tensor]] = {
    1: torch.conv1d,
    2: torch.conv2d,
    3: torch.conv3d,
}

_EXACT_IN_FLOAT32 = 1 << 24

_GREATEST_INPUT = 255


class QuantisedConvolution(Solution):
    """Constant weights, scales and zero points."""

    name = "quantised_convolution"

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("", "QLinearConv"), ("", "ConvInteger")})

    def check(self, problem: Problem) -> Applicability:
        source = problem.operand(0)
        if source is None or source.constant is not None or source.type.dtype not in BYTES:
            return refused("the input is not of variable bytes")
        for operand in problem.operands[1:]:
            if operand is not None and operand.constant is None:
                return refused(f"'{operand.name}' is not constant")
        geometry = read_geometry(problem)
        if isinstance(geometry, str):
            return refused(geometry)
        if len(geometry.kernel) > 3:
            return refused(f"{len(geometry.kernel)} spatial dimensions, at most 3 are known")
        weight = problem.operand(weight_position(problem))
        if weight is None or weight.type.dtype not in BYTES or weight.constant is None:
            return refused("the weights are not of bytes")
        single = (1, 2, 6, 7) if problem.operator == "QLinearConv" else (2,)
        for position in single:
            operand = problem.operand(position)
            if operand is not None and operand.type.shape not in ((), (1,)):
                return refused(f"'{operand.name}' has more than one element")
        channels = (weight.constant.shape[0],)
        for position in (4, 5) if problem.operator == "QLinearConv" else (3,):
            operand = problem.operand(position)
            if operand is not None and operand.type.shape not in ((), (1,), channels):
                return refused(f"'{operand.name}' has shape {operand.type.shape}")
        return APPLIES

    def transform(self, problem: Problem) -> Mapping[str, torch.Tensor]:
        """``weight``: less its zero points, float32 where that is exact, else float64."""
        position = weight_position(problem)
        weight = problem.operands[position]
        point = problem.operand(5 if position == 3 else 3)
        assert weight is not None
        assert weight.constant is not None
        integers = weight.constant.astype(np.int64)
        if point is not None and point.constant is not None:
            shape = (-1,) + (1,) * (integers.ndim - 1)
            integers = integers - point.constant.astype(np.int64).reshape(shape)
        rows = np.abs(integers).sum(tuple(range(1, integers.ndim)))
        is_exact = int(rows.max(initial=0)) * _GREATEST_INPUT < _EXACT_IN_FLOAT32
        exact = integers.astype(np.float32 if is_exact else np.float64)
        return {"weight": torch.from_numpy(exact).to(problem.device)}

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        geometry = read_geometry(problem)
        assert isinstance(geometry, Geometry)
        weight = weights["weight"]
        call, dtype = _CALLS[len(geometry.kernel)], weight.dtype
        strides, dilations, group = geometry.strides, geometry.dilations, geometry.group
        padding = geometry.begin if geometry.is_symmetric else (0,) * len(geometry.begin)
        point = constant_tensor(problem, 2)
        offset = None if point is None else point.reshape(()).to(dtype)
        finish = _finish(problem)

        def kernel(source: torch.Tensor) -> tuple[torch.Tensor]:
            values = source.to(dtype)
            if offset is not None:
                values.sub_(offset)
            if not geometry.is_symmetric:
                amounts = pad_amounts(*geometry.padding(source.shape[2:]))
                values = torch.constant_pad_nd(values, amounts)
            result = call(values, weight, None, strides, padding, dilations, group)
            return (finish(result),)

        return kernel


def _finish(problem: Problem) -> Callable[[torch.Tensor], torch.Tensor]:
    """From exact sums to the result: int32, or bias added, scaled, rounded and saturated."""
    if problem.operator == "ConvInteger":
        return lambda result: result.to(torch.int32)
    tensors: list[Any] = [constant_tensor(problem, position) for position in range(9)]
    rank = problem.operands[0].type.rank or 0  # type: ignore[union-attr]  # checked
    columns = (-1,) + (1,) * (rank - 2)
    factor = (tensors[1] * tensors[4] / tensors[6]).double()
    factor = factor.reshape(columns) if factor.numel() > 1 else factor.reshape(())
    dtype = tensors[7].dtype
    point = tensors[7].reshape(()).double()
    bias = None if tensors[8] is None else tensors[8].double().reshape(columns)

    def finish(result: torch.Tensor) -> torch.Tensor:
        exact = result.double()
        if bias is not None:
            exact.add_(bias)
        return saturate(exact.mul_(factor).add_(point), dtype)

    return finish


SOLUTIONS: tuple[Solution, ...] = (QuantisedConvolution(),)
