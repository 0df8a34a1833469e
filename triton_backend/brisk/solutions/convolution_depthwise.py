"""Depthwise convolutions by the compiled library: no primitive to make, hardly any weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch.nn import functional

from brisk.compiled.layer import BY_CHANNEL, MOST_TAPS
from brisk.solutions.base import Pattern, Problem, Solution
from brisk.solutions.compiled_layer import padded_bias, whole_vectors
from brisk.solutions.convolution_blocked import BlockedConvolution
from brisk.solutions.convolution_geometry import Geometry
from brisk.solutions.epilogue import constant_tensor


class DepthwiseConvolution(BlockedConvolution):
    """Conv in two dimensions whose channels are a group each, with constant weights."""

    name = "depthwise_convolution"
    pattern = Pattern.DIRECT
    transforms_long = False
    unit: ClassVar[int] = BY_CHANNEL

    def _refusal(
        self, problem: Problem, geometry: Geometry, weight: tuple[int, ...]
    ) -> str | None:
        if len(geometry.kernel) != 2 or not geometry.group == weight[0] > weight[1] == 1:
            return "not in two dimensions, or channels are not a group each"
        if math.prod(geometry.kernel) > MOST_TAPS:
            return f"{math.prod(geometry.kernel)} taps, at most {MOST_TAPS}"
        return None

    def transform(self, problem: Problem) -> Mapping[str, torch.Tensor]:
        """``panels``: (taps and one of zeros, channels up to whole vectors); ``bias``."""
        weight = constant_tensor(problem, 1)
        assert weight is not None
        taps = whole_vectors(weight.flatten(1).t())
        bias = padded_bias(constant_tensor(problem, 2), len(weight))
        return {"panels": functional.pad(taps, (0, 0, 0, 1)), "bias": bias}


SOLUTIONS: tuple[Solution, ...] = (DepthwiseConvolution(),)
