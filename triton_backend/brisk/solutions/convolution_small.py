"""Convolutions so small that oneDNN's cost per call outweighs them.

A call of oneDNN's operator costs 25-30 microseconds whatever it computes; torch's own unfolding
convolution starts at 4. On the machine where this was measured they meet at about two million
multiplications.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from brisk.solutions.base import Kernel, LoadContext, Pattern, Problem, Solution, Verdict, refused
from brisk.solutions.convolution import OneDnnConvolution
from brisk.solutions.convolution_geometry import Geometry, read_geometry
from brisk.solutions.epilogue import constant_tensor, finish_epilogue
from brisk.solutions.onednn_call import finished, lifted, operator_padding, prepared

MOST_MULTIPLICATIONS = 2_000_000

_nn: Any = torch._C._nn


class SmallConvolution(Solution):
    """Conv of few multiplications: unfolding for few images, oneDNN for a larger batch."""

    name = "small_convolution"
    pattern = Pattern.GEMM

    def __init__(self) -> None:
        self._large = OneDnnConvolution()

    def operators(self) -> frozenset[tuple[str, str]]:
        return self._large.operators()

    def check(self, problem: Problem) -> Verdict:
        verdict = self._large.check(problem)
        if not verdict.ok:
            return verdict
        source, geometry = problem.operand(0), read_geometry(problem)
        assert source is not None
        assert isinstance(geometry, Geometry)
        if source.type.dtype != "float32":
            return refused(f"dtype {source.type.dtype} is not float32")
        if len(geometry.kernel) > 2:
            return refused("more than two spatial dimensions")
        if geometry.group != 1 or set(geometry.dilations) != {1}:
            return refused("grouped or dilated")
        count = multiplications(problem, geometry)
        if count is None:
            return refused("the sizes are not known")
        if count > MOST_MULTIPLICATIONS:
            return refused(f"{count} multiplications an image, at most {MOST_MULTIPLICATIONS}")
        return verdict

    def transform(self, problem: Problem) -> Mapping[str, torch.Tensor]:
        """oneDNN's ``weight`` and ``bias``, and ``plain``: channels-last (out, in, h, w)."""
        geometry, plain = read_geometry(problem), constant_tensor(problem, 1)
        assert isinstance(geometry, Geometry)
        assert plain is not None
        plane = plain.unsqueeze(2) if len(geometry.kernel) == 1 else plain
        channels_last = plane.contiguous(memory_format=torch.channels_last)
        return {**self._large.transform(problem), "plain": channels_last}

    def transformed_operands(self, problem: Problem) -> frozenset[int]:
        return frozenset({1, 2})

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        geometry = read_geometry(problem)
        assert isinstance(geometry, Geometry)
        count = multiplications(problem, geometry)
        assert count is not None
        few = max(MOST_MULTIPLICATIONS // max(count, 1), 1)
        large = self._large.load(problem, weights, context)
        weight, bias = weights["plain"], weights.get("bias")
        kernel_size = lifted(geometry.kernel, 1)
        strides, padding = lifted(geometry.strides, 1), lifted(operator_padding(geometry), 0)
        call = _nn.thnn_conv2d

        def unfolding(source: torch.Tensor) -> torch.Tensor:
            return call(source, weight, kernel_size, bias, strides, padding)

        small = finished(prepared(unfolding, geometry), finish_epilogue(problem), 1)

        def kernel(*operands: torch.Tensor) -> Any:
            images = operands[0].shape[0]
            return small(*operands) if 0 < images <= few else large(*operands)

        return kernel


def multiplications(problem: Problem, geometry: Geometry) -> int | None:
    """Multiplications for one image; None where a size is symbolic."""
    source, weight = problem.operand(0), problem.operand(1)
    assert source is not None
    assert weight is not None
    assert weight.constant is not None
    sizes = [size for size in (source.type.shape or ())[2:] if isinstance(size, int)]
    if len(sizes) != len(geometry.kernel):
        return None
    count = weight.constant.size
    for size in geometry.output_sizes(sizes):
        count *= max(size, 0)
    return count


SOLUTIONS: tuple[Solution, ...] = (SmallConvolution(),)
