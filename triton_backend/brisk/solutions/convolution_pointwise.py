"""Pointwise convolutions of few pixels as a product with a matrix in oneDNN's layout for products.

Late in an image network the feature maps are small and the weights large: what counts is how
weights stream. For one image this product takes as long as the fused convolution, within 5
percent, and as MKL's packed matrices, which cannot be kept on disk because MKL forbids moving
them; for batches of 4 and 16 it was up to five times as fast as the fused convolution where that
chose badly (256 to 1024 channels of 14 x 14 pixels).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch

from brisk.solutions.base import Kernel, LoadContext, Pattern, Problem, Solution, Verdict, refused
from brisk.solutions.convolution import OneDnnConvolution
from brisk.solutions.convolution_geometry import Geometry, read_geometry
from brisk.solutions.epilogue import constant_tensor, finish_epilogue
from brisk.solutions.onednn_call import finished
from brisk.solutions.onednn_fusion import fuse_activation

MOST_PIXELS = 256

FEWEST_WEIGHTS = 1 << 16


class PointwiseConvolution(Solution):
    """1 x 1 Conv in two dimensions; weights are laid out for one image."""

    name = "pointwise_convolution"
    pattern = Pattern.POINTWISE

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("", "Conv")})

    def check(self, problem: Problem) -> Verdict:
        verdict = check_pointwise(problem)
        if not verdict.ok:
            return verdict
        geometry = read_geometry(problem)
        assert isinstance(geometry, Geometry)
        pixels = _pixels(problem, geometry)
        if pixels is None:
            return refused("the sizes are not known")
        if not 0 < pixels <= MOST_PIXELS:
            return refused(f"{pixels} pixels, at most {MOST_PIXELS}")
        return verdict

    def transform(self, problem: Problem) -> Mapping[str, torch.Tensor]:
        """``weight``: opaque, in oneDNN's layout for a product; ``bias``, if any."""
        weight, bias = constant_tensor(problem, 1), constant_tensor(problem, 2)
        geometry = read_geometry(problem)
        assert weight is not None
        assert isinstance(geometry, Geometry)
        matrix, pixels = weight.reshape(weight.shape[:2]), _pixels(problem, geometry)
        packed = torch.ops.mkldnn._reorder_linear_weight(matrix, pixels)
        return {"weight": packed} if bias is None else {"weight": packed, "bias": bias}

    def transformed_operands(self, problem: Problem) -> frozenset[int]:
        return frozenset({1, 2})

    def specialisation(self, problem: Problem) -> Hashable:
        return OneDnnConvolution().specialisation(problem)

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        geometry = read_geometry(problem)
        assert isinstance(geometry, Geometry)
        weight, bias = weights["weight"], weights.get("bias")
        columns, rows = weight.shape
        down, across = geometry.strides
        is_dense = down == across == 1
        fusion = fuse_activation(problem)
        activation = fusion.activation
        attribute, algorithm = activation.attribute, activation.algorithm
        scalars = list(activation.scalars)
        call = torch.ops.mkldnn._linear_pointwise.default

        def compute(source: torch.Tensor) -> torch.Tensor:
            if not is_dense:
                source = source[:, :, ::down, ::across]
            images, _, height, width = source.shape
            flat = source.permute(0, 2, 3, 1).reshape(-1, rows)
            result = call(flat, weight, bias, attribute, scalars, algorithm)
            return result.view(images, height, width, columns).permute(0, 3, 1, 2)

        return finished(compute, finish_epilogue(problem, fusion.steps), 1)


def check_pointwise(problem: Problem) -> Verdict:
    """Whether it is a product with a constant matrix large enough for its layout to matter."""
    verdict = OneDnnConvolution().check(problem)
    if not verdict.ok:
        return verdict
    source, weight, geometry = problem.operand(0), problem.operand(1), read_geometry(problem)
    assert source is not None
    assert weight is not None
    assert weight.constant is not None
    assert isinstance(geometry, Geometry)
    if source.type.dtype != "float32":
        return refused(f"dtype {source.type.dtype} is not float32")
    if geometry.kernel != (1, 1) or geometry.group != 1:
        return refused("not a 1 x 1 convolution of one group")
    if any((*geometry.begin, *geometry.end)):
        return refused("padded")
    if weight.constant.size < FEWEST_WEIGHTS:
        return refused(f"{weight.constant.size} weights, at least {FEWEST_WEIGHTS}")
    return verdict


def _pixels(problem: Problem, geometry: Geometry) -> int | None:
    """Pixels of one image's result; None where a size is symbolic."""
    source = problem.operand(0)
    assert source is not None
    sizes = [size for size in (source.type.shape or ())[2:] if isinstance(size, int)]
    if len(sizes) != 2 or len(geometry.kernel) != 2:
        return None
    height, width = geometry.output_sizes(sizes)
    return height * width


SOLUTIONS: tuple[Solution, ...] = (PointwiseConvolution(),)
