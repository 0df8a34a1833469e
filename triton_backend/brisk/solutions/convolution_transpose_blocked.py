"""Transposed convolutions whose taps do not overlap, as one product by the compiled library.

Every input pixel makes a rectangle of outputs of its own, as the decoders of U-Nets have it. torch
makes a primitive for each: 2 ms of a first run that takes as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from brisk.solutions.base import Kernel, LoadContext, Pattern, Problem, Solution, Verdict, refused
from brisk.solutions.compiled_layer import (
    CompiledLayer,
    Fused,
    fuse,
    library_refusal,
    padded_bias,
    panels,
)
from brisk.solutions.convolution_geometry import Geometry, integers, read_geometry
from brisk.solutions.convolution_transpose import TorchTransposedConvolution
from brisk.solutions.epilogue import check_epilogue, constant_tensor, finish_epilogue

FEWEST_CHANNELS = 256
"""Below, torch's own kernel is as fast or faster: 1.1 instead of 1.6 ms of 64 channels."""


class BlockedTransposedConvolution(Solution):
    """ConvTranspose in two dimensions with strides as long as the kernel, of one group, unpadded,
    with constant weights; any batch and sizes.
    """

    name = "blocked_transposed_convolution"
    pattern = Pattern.GEMM

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("", "ConvTranspose")})

    def check(self, problem: Problem) -> Verdict:
        verdict = TorchTransposedConvolution().check(problem)
        if not verdict.ok:
            return verdict
        reason = _refusal(problem) or library_refusal(problem)
        return check_epilogue(problem) if reason is None else refused(reason)

    def transform(self, problem: Problem) -> Mapping[str, torch.Tensor]:
        """``panels`` and ``bias`` as the library wants them, for (row, column, channel) of the
        rectangle as the outputs of a product."""
        weight = constant_tensor(problem, 1)
        assert weight is not None
        channels, outputs, *kernel = weight.shape
        pixels = kernel[0] * kernel[1]
        bias = constant_tensor(problem, 2)
        repeated = None if bias is None else bias.repeat(pixels)
        return {
            "panels": panels(weight.permute(0, 2, 3, 1).reshape(channels, -1)),
            "bias": padded_bias(repeated, pixels * outputs),
        }

    def transformed_operands(self, problem: Problem) -> frozenset[int]:
        return frozenset({1, 2})

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        weight = problem.operand(1)
        assert weight is not None
        assert weight.constant is not None
        channels, outputs, down, across = weight.constant.shape
        fused = fuse(problem, None)
        if fused.adds:
            fused = Fused()
        layer = CompiledLayer(weights, channels, down * across * outputs, fused)
        finish = finish_epilogue(problem, fused.steps)

        def kernel(source: torch.Tensor, *operands: torch.Tensor) -> Sequence[torch.Tensor]:
            images, given, height, width = source.shape
            if given != channels:
                raise ValueError(
                    f"a transposed convolution of {channels} channels cannot take an input of "
                    f"shape {tuple(source.shape)}"
                )
            sizes = (images, height * down, width * across, outputs)
            if source.numel():
                rectangles = layer.compute_map(source, (height, width)).permute(0, 2, 3, 1)
                rows = rectangles.reshape(images, height, width, down, across * outputs)
                result = rows.transpose(2, 3).reshape(sizes).permute(0, 3, 1, 2)
            else:
                result = source.new_empty(sizes).permute(0, 3, 1, 2)
            return (result if finish is None else finish(result, operands),)

        return kernel


def _refusal(problem: Problem) -> str | None:
    """Why the problem is no such product; None where it is."""
    weight, bias, geometry = problem.operand(1), problem.operand(2), read_geometry(problem)
    assert isinstance(geometry, Geometry)
    if weight is None or weight.constant is None or (bias is not None and bias.constant is None):
        return "the weights are not constant"
    if len(geometry.kernel) != 2 or geometry.group != 1:
        return "not in two dimensions, or of several groups"
    if geometry.strides != geometry.kernel or set(geometry.dilations) != {1}:
        return f"taps of {geometry.kernel} in steps of {geometry.strides} do not lie side by side"
    changed = (*geometry.begin, *geometry.end, *integers(problem.attributes, "output_padding", ()))
    if any(changed) or geometry.same is not None or "output_shape" in problem.attributes:
        return "padded, or of a size that is asked for"
    if weight.constant.shape[0] < FEWEST_CHANNELS:
        return f"{weight.constant.shape[0]} channels, at least {FEWEST_CHANNELS}"
    return None if weight.constant.size else "the weights are empty"


SOLUTIONS: tuple[Solution, ...] = (BlockedTransposedConvolution(),)
