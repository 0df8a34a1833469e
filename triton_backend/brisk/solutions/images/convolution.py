"""Convolution by torch's general operators: any device, weights constant or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
from brisk.solutions.binding import bound_kernel, constant_tensor
from brisk.solutions.images.convolution_geometry import Geometry, pad_amounts, read_geometry
from brisk.solutions.rules import FLOATS

_CALLS: Mapping[int, Callable[..., torch.Tensor]] = {
    1: torch.conv1d,
    2: torch.conv2d,
    3: torch.conv3d,
}


def constant_weights(problem: Problem) -> dict[str, torch.Tensor]:
    """Those of input, weight and bias that are constant, by these names.

    On a GPU, weights of planes are channels-last.
    """
    tensors: dict[str, torch.Tensor] = {}
    for position, name in enumerate(("input", "weight", "bias")):
        tensor = constant_tensor(problem, position)
        if tensor is not None:
            planes = tensor.dim() == 4 and problem.device.type == "cuda"
            tensors[name] = (
                tensor.contiguous(memory_format=torch.channels_last) if planes else tensor
            )
    return tensors


def bound_operands(weights: Mapping[str, torch.Tensor]) -> list[torch.Tensor | None]:
    return [weights.get(name) for name in ("input", "weight", "bias")]


def check_operands(problem: Problem) -> Applicability:
    """Whether dtypes and ranks are such that torch computes what ONNX defines."""
    source, weight = problem.operand(0), problem.operand(1)
    if source is None or weight is None:
        return refused("an operand is missing")
    dtypes = {operand.type.dtype for operand in problem.operands if operand is not None}
    if len(dtypes) != 1 or source.type.dtype not in FLOATS:
        return refused(
            f"dtypes {sorted(map(str, dtypes))}, one of {', '.join(sorted(FLOATS))} is known"
        )
    geometry = read_geometry(problem)
    if isinstance(geometry, str):
        return refused(geometry)
    if len(geometry.kernel) > 3:
        return refused(f"{len(geometry.kernel)} spatial dimensions, at most 3 are known")
    return APPLIES


class TorchConvolution(Solution):
    """Conv with any padding."""

    name = "torch_convolution"

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("", "Conv")})

    def check(self, problem: Problem) -> Applicability:
        return check_operands(problem)

    def transform(self, problem: Problem) -> Mapping[str, torch.Tensor]:
        return constant_weights(problem)

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        geometry = read_geometry(problem)
        assert isinstance(geometry, Geometry)
        call = _CALLS[len(geometry.kernel)]
        strides, dilations, group = geometry.strides, geometry.dilations, geometry.group
        symmetric = geometry.is_symmetric and min(geometry.begin) >= 0
        padding = geometry.begin if symmetric else (0,) * len(geometry.begin)

        def compute(
            source: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
        ) -> torch.Tensor:
            if not symmetric:
                amounts = pad_amounts(*geometry.padding(source.shape[2:]))
                source = torch.constant_pad_nd(source, amounts)
            return call(source, weight, bias, strides, padding, dilations, group)

        return bound_kernel(problem, compute, bound_operands(weights))


SOLUTIONS: tuple[Solution, ...] = (TorchConvolution(),)
