"""Transposed convolution by torch's general operators: any device, weights constant or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from brisk.solutions.base import Applicability, Kernel, LoadContext, Problem, Solution, refused
from brisk.solutions.binding import bound_kernel
from brisk.solutions.images.convolution import bound_operands, check_operands, constant_weights
from brisk.solutions.images.convolution_geometry import Geometry, integers, read_geometry

_CALLS: Mapping[int, Callable[..., torch.Tensor]] = {
    1: torch.conv_transpose1d,
    2: torch.conv_transpose2d,
    3: torch.conv_transpose3d,
}


class TorchTransposedConvolution(Solution):
    """ConvTranspose; asymmetric paddings are cut off afterwards."""

    name = "torch_transposed_convolution"

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("", "ConvTranspose")})

    def check(self, problem: Problem) -> Applicability:
        verdict = check_operands(problem)
        if not verdict.ok:
            return verdict
        geometry = read_geometry(problem)
        assert isinstance(geometry, Geometry)
        if min(*geometry.begin, *geometry.end) < 0:
            return refused("negative padding")
        extra = integers(problem.attributes, "output_padding", (0,) * len(geometry.kernel))
        for amount, stride, dilation in zip(
            extra, geometry.strides, geometry.dilations, strict=True
        ):
            if amount >= max(stride, dilation):
                return refused("output padding not smaller than stride or dilation")
        source, wanted = problem.operand(0), _wanted_sizes(problem, geometry)
        assert source is not None
        if not wanted:
            return verdict
        known = [size for size in (source.type.shape or ())[2:] if isinstance(size, int)]
        if len(known) != len(wanted):
            return refused("output_shape for an input whose sizes are not known")
        if _extra_sizes(known, wanted, geometry, extra) is None:
            return refused("output_shape beyond what output padding can reach")
        return verdict

    def transform(self, problem: Problem) -> Mapping[str, torch.Tensor]:
        return constant_weights(problem)

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        geometry = read_geometry(problem)
        assert isinstance(geometry, Geometry)
        rank = len(geometry.kernel)
        call = _CALLS[rank]
        strides, dilations, group = geometry.strides, geometry.dilations, geometry.group
        extra = integers(problem.attributes, "output_padding", (0,) * rank)
        wanted = _wanted_sizes(problem, geometry)
        if wanted:
            sizes = problem.operands[0].type.shape[2:]  # type: ignore[union-attr,index]
            extra = _extra_sizes(sizes, wanted, geometry, extra) or extra  # type: ignore[arg-type]
        direct = not wanted and geometry.is_symmetric
        padding = geometry.begin if direct else (0,) * rank

        def compute(
            source: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
        ) -> torch.Tensor:
            result = call(source, weight, bias, strides, padding, extra, group, dilations)
            return result if direct else _cut(result, source, geometry, wanted)

        return bound_kernel(problem, compute, bound_operands(weights))


def _wanted_sizes(problem: Problem, geometry: Geometry) -> tuple[int, ...]:
    """The spatial sizes of attribute ``output_shape``; empty where it is absent."""
    return integers(problem.attributes, "output_shape", ())[-len(geometry.kernel) :]


def _extra_sizes(
    sizes: Sequence[int], wanted: Sequence[int], geometry: Geometry, extra: Sequence[int]
) -> tuple[int, ...] | None:
    """The output padding with which the result reaches ``wanted``; None where it cannot."""
    full = [
        stride * (size - 1) + dilation * (kernel - 1) + 1
        for size, stride, dilation, kernel in zip(
            sizes, geometry.strides, geometry.dilations, geometry.kernel, strict=True
        )
    ]
    needed = tuple(
        max(amount, target - size)
        for amount, target, size in zip(extra, wanted, full, strict=True)
    )
    limits = zip(needed, geometry.strides, geometry.dilations, strict=True)
    possible = all(amount < max(stride, dilation) for amount, stride, dilation in limits)
    return needed if possible else None


def _cut(
    result: torch.Tensor, source: torch.Tensor, geometry: Geometry, wanted: Sequence[int]
) -> torch.Tensor:
    """``result`` of the unpadded operator without the paddings.

    ``wanted``: the spatial sizes asked for, or empty.
    """
    begin = geometry.begin
    if wanted or geometry.same is not None:
        scaled = zip(source.shape[2:], geometry.strides, strict=True)
        sizes = wanted or [size * stride for size, stride in scaled]
        totals = [full - size for full, size in zip(result.shape[2:], sizes, strict=True)]
        upper = geometry.same == "SAME_UPPER"
        begin = tuple(total // 2 if upper else total - total // 2 for total in totals)
    else:
        pads = zip(result.shape[2:], geometry.begin, geometry.end, strict=True)
        sizes = [full - before - after for full, before, after in pads]
    for dimension, (start, size) in enumerate(zip(begin, sizes, strict=True), 2):
        result = result.narrow(dimension, start, size)
    return result


SOLUTIONS: tuple[Solution, ...] = (TorchTransposedConvolution(),)
