"""Convolution on oneDNN's fused operators, with weights in oneDNN's own layout.

The result is channels-last, and so is what the operator reads best; it converts other layouts
itself. One-dimensional problems are lifted to two dimensions of which the first has size 1.
Weights are laid out for the problem's static sizes where it has any; other sizes compute the
same, if need be with a reordering at each call.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import torch

from brisk.graph.program import Dimension
from brisk.solutions.base import (
    Kernel,
    LoadContext,
    Pattern,
    Problem,
    Solution,
    Verdict,
    refused,
)
from brisk.solutions.convolution_geometry import Geometry, read_geometry
from brisk.solutions.epilogue import check_epilogue, constant_tensor, finish_epilogue
from brisk.solutions.onednn_call import (
    convolution_call,
    finished,
    lifted,
    onednn_refusal,
    operator_padding,
    prepared,
)
from brisk.solutions.onednn_fusion import Fusion, fuse_binary


class OneDnnConvolution(Solution):
    """Conv with constant weights, epilogue fused as far as oneDNN can."""

    name = "onednn_convolution"
    pattern = Pattern.DIRECT

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("", "Conv")})

    def check(self, problem: Problem) -> Verdict:
        source, weight, bias = problem.operand(0), problem.operand(1), problem.operand(2)
        if source is None or weight is None:
            return refused("an operand is missing")
        if source.constant is not None:
            return refused("the input is constant")
        reason = onednn_refusal(weight.type.dtype, problem.device)
        if reason is not None:
            return refused(reason)
        if weight.constant is None or (bias is not None and bias.constant is None):
            return refused("the weights are not constant")
        if weight.constant.size == 0:
            return refused("the weights are empty")
        geometry = read_geometry(problem)
        if isinstance(geometry, str):
            return refused(geometry)
        if len(geometry.kernel) > 3:
            return refused(f"{len(geometry.kernel)} spatial dimensions, at most 3 are known")
        if geometry.same is not None:
            return refused("the padding depends on sizes known only at run time")
        if min(*geometry.begin, *geometry.end) < 0:
            return refused("negative padding")
        return check_epilogue(problem)

    def transform(self, problem: Problem) -> Mapping[str, torch.Tensor]:
        """``weight``: opaque, in oneDNN's layout; ``bias``: (output channels,), if any."""
        weight, bias = constant_tensor(problem, 1), constant_tensor(problem, 2)
        geometry = read_geometry(problem)
        assert weight is not None
        assert isinstance(geometry, Geometry)
        packed = torch.ops.mkldnn._reorder_convolution_weight(
            weight.unsqueeze(2) if len(geometry.kernel) == 1 else weight,
            lifted(operator_padding(geometry), 0),
            lifted(geometry.strides, 1),
            lifted(geometry.dilations, 1),
            geometry.group,
            _input_sizes(problem, geometry),
        )
        return {"weight": packed} if bias is None else {"weight": packed, "bias": bias}

    def transformed_operands(self, problem: Problem) -> frozenset[int]:
        return frozenset({1, 2})

    def specialisation(self, problem: Problem) -> Hashable:
        """All that oneDNN generates code for: it makes a primitive per distinct problem."""
        source, weight = problem.operand(0), problem.operand(1)
        assert source is not None
        assert weight is not None
        fused = tuple((step.operator, step.operand is not None) for step in problem.epilogue)
        return source.type, weight.type, read_geometry(problem), fused

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        geometry = read_geometry(problem)
        assert isinstance(geometry, Geometry)
        fusion = fuse_binary(problem, _result_dimensions(problem, geometry))
        constant = None
        if fusion.binary is not None:
            constant = constant_tensor(problem, None)
            if constant is not None and not fusion.is_certain:
                fusion, constant = Fusion(0), None
            elif constant is not None and len(geometry.kernel) == 1:
                constant = constant.unsqueeze(-2)
        compute = prepared(convolution_call(geometry, weights, fusion, constant), geometry)
        taken = 2 if fusion.binary is not None and constant is None else 1
        fused = finished(compute, finish_epilogue(problem, fusion.steps), taken)
        if fusion.is_certain:
            return fused
        compute = prepared(convolution_call(geometry, weights, Fusion(0)), geometry)
        unfused = finished(compute, finish_epilogue(problem), 1)
        channels = weights["weight"].shape[0]
        return _comparing(fused, unfused, geometry, channels)


def _comparing(fused: Kernel, unfused: Kernel, geometry: Geometry, channels: int) -> Kernel:
    """``fused`` where the second operand has the shape of the convolution's result."""

    def kernel(
        source: torch.Tensor, operand: torch.Tensor, *others: torch.Tensor
    ) -> Sequence[object]:
        sizes = geometry.output_sizes(source.shape[2:])
        fits = operand.shape == (source.shape[0], channels, *sizes)
        return (fused if fits else unfused)(source, operand, *others)

    return kernel  # type: ignore[return-value]  # what either kernel returns


def _result_dimensions(problem: Problem, geometry: Geometry) -> tuple[Dimension, ...]:
    source, weight = problem.operand(0), problem.operand(1)
    assert source is not None
    assert weight is not None
    shape, channels = source.type.shape or (), (weight.type.shape or ())[0]
    return (shape[0], channels, *geometry.output_dimensions(shape[2:]))


def _input_sizes(problem: Problem, geometry: Geometry) -> tuple[int, ...] | None:
    """The sizes that the operator will see, the batch taken as 1 where it is symbolic.

    None where others than the batch are symbolic.
    """
    source, weight = problem.operand(0), problem.operand(1)
    assert source is not None
    assert weight is not None
    batch, *sizes = (source.type.shape or ())[:1] + (source.type.shape or ())[2:]
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) != len(sizes):
        return None
    if not geometry.is_symmetric:
        pads = zip(known, geometry.begin, geometry.end, strict=True)
        known = [size + before + after for size, before, after in pads]
    if min(known) < 1:
        return None
    channels = (weight.type.shape or ())[1]
    assert isinstance(channels, int)
    first = batch if isinstance(batch, int) and batch > 0 else 1
    return (first, channels * geometry.group, *lifted(tuple(known), 1))


SOLUTIONS: tuple[Solution, ...] = (OneDnnConvolution(),)
