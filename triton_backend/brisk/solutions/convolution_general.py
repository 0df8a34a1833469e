"""Convolution by unfolding and one product: no primitive to make, weights as the model has them.

Slower than oneDNN's fused operator on all but small problems, but its code fits any size: what
PASK calls a generic solution, which stands in where the best one is not loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from brisk.graph.deferral import ScaledWeights
from brisk.solutions.base import Kernel, LoadContext, Pattern, Problem, Solution, Verdict, refused
from brisk.solutions.convolution import OneDnnConvolution
from brisk.solutions.convolution_geometry import Geometry, read_geometry
from brisk.solutions.convolution_pointwise import check_pointwise
from brisk.solutions.epilogue import constant_tensor, finish_epilogue
from brisk.solutions.onednn_call import finished, operator_padding, prepared
from brisk.solutions.values import from_numpy

_nn: Any = torch._C._nn


class GeneralConvolution(Solution):
    """Conv in two dimensions, of one group, undilated, with constant weights."""

    name = "general_convolution"
    pattern = Pattern.DIRECT
    resident = True

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("", "Conv")})

    def check(self, problem: Problem) -> Verdict:
        verdict = OneDnnConvolution().check(problem)
        if not verdict.ok:
            return verdict
        source, geometry = problem.operand(0), read_geometry(problem)
        assert source is not None
        assert isinstance(geometry, Geometry)
        if source.type.dtype != "float32" or len(geometry.kernel) != 2:
            return refused("not float32 in two dimensions")
        if geometry.group != 1 or set(geometry.dilations) != {1}:
            return refused("grouped or dilated")
        return verdict

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        geometry = read_geometry(problem)
        assert isinstance(geometry, Geometry)
        weight, bias = constant_tensor(problem, 1), constant_tensor(problem, 2)
        kernel, strides, padding = geometry.kernel, geometry.strides, operator_padding(geometry)
        call = _nn.thnn_conv2d

        def unfolding(source: torch.Tensor) -> torch.Tensor:
            return call(source, weight, kernel, bias, strides, padding)

        return finished(prepared(unfolding, geometry), finish_epilogue(problem), 1)


class GeneralPointwise(Solution):
    """1 x 1 Conv of many weights: a product with the weights as they lie in the model's file.

    A factor per output channel that is still to be folded into them is applied to the result.
    """

    name = "general_pointwise"
    pattern = Pattern.POINTWISE
    resident = True

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("", "Conv")})

    def check(self, problem: Problem) -> Verdict:
        return check_pointwise(problem)

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        geometry, weight = read_geometry(problem), problem.operand(1)
        assert isinstance(geometry, Geometry)
        assert weight is not None
        plain: Any = weight.constant
        factor: Any = None
        if isinstance(plain, ScaledWeights):
            plain, factor = plain.weights, from_numpy(plain.factor, problem.device)
        given = from_numpy(plain, problem.device)
        assert isinstance(given, torch.Tensor)
        matrix = given.reshape(given.shape[:2])
        bias = constant_tensor(problem, 2)
        down, across = geometry.strides
        columns, rows = matrix.shape
        linear = _nn.linear

        def compute(source: torch.Tensor) -> torch.Tensor:
            source = source[:, :, ::down, ::across]
            images, _, height, width = source.shape
            flat = source.permute(0, 2, 3, 1).reshape(-1, rows)
            if factor is None:
                result = linear(flat, matrix, bias)
            else:
                result = linear(flat, matrix).mul_(factor)
                result = result if bias is None else result.add_(bias)
            return result.view(images, height, width, columns).permute(0, 3, 1, 2)

        return finished(compute, finish_epilogue(problem), 1)


SOLUTIONS: tuple[Solution, ...] = (GeneralConvolution(), GeneralPointwise())
