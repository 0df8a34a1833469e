"""Pointwise convolutions of few pixels as a product with a matrix that MKL has packed.

Late in an image network the feature maps are small and the weights large. Each call then streams
weights that no cache nearby holds, and MKL's packed panels stream better than the layout of
oneDNN's fused operator: 20 to 30 percent faster at 14 x 14 and 7 x 7 pixels, although the
epilogue takes passes of its own. From 28 x 28 on there is no gain.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from brisk.solutions.base import Kernel, LoadContext, Pattern, Problem, Solution, Verdict, refused
from brisk.solutions.convolution import OneDnnConvolution
from brisk.solutions.convolution_geometry import Geometry, read_geometry
from brisk.solutions.epilogue import constant_tensor, finish_epilogue
from brisk.solutions.onednn_call import finished

MOST_PIXELS = 256

FEWEST_WEIGHTS = 1 << 16


class PointwiseConvolution(Solution):
    """1 x 1 Conv in two dimensions, packed for one image; other batches use a plain matrix."""

    name = "pointwise_convolution"
    pattern = Pattern.POINTWISE

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("", "Conv")})

    def check(self, problem: Problem) -> Verdict:
        if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
            return refused("this torch has no MKL")
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
        pixels = _pixels(problem, geometry)
        if pixels is None:
            return refused("the sizes are not known")
        if not 0 < pixels <= MOST_PIXELS:
            return refused(f"{pixels} pixels, at most {MOST_PIXELS}")
        if weight.constant.size < FEWEST_WEIGHTS:
            return refused(f"{weight.constant.size} weights, at least {FEWEST_WEIGHTS}")
        return verdict

    def transform(self, problem: Problem) -> Mapping[str, torch.Tensor]:
        """``packed``: MKL's opaque copy; ``matrix``: (out, in), a view; ``bias``, if any."""
        weight, bias = constant_tensor(problem, 1), constant_tensor(problem, 2)
        geometry = read_geometry(problem)
        assert weight is not None
        assert isinstance(geometry, Geometry)
        matrix = weight.reshape(weight.shape[:2])
        pixels = _pixels(problem, geometry)
        packed = torch.ops.mkl._mkl_reorder_linear_weight(matrix, pixels)
        tensors = {"packed": packed, "matrix": matrix}
        return tensors if bias is None else {**tensors, "bias": bias}

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        geometry = read_geometry(problem)
        assert isinstance(geometry, Geometry)
        pixels = _pixels(problem, geometry)
        packed, matrix, bias = weights["packed"], weights["matrix"], weights.get("bias")
        columns, rows = matrix.shape
        down, across = geometry.strides
        is_dense = down == across == 1
        call = torch.ops.mkl._mkl_linear.default

        def compute(source: torch.Tensor) -> torch.Tensor:
            if not is_dense:
                source = source[:, :, ::down, ::across]
            images, _, height, width = source.shape
            flat = source.permute(0, 2, 3, 1).reshape(-1, rows)
            # the operator takes the plain matrix itself where the number of rows is another
            result = call(flat, packed, matrix, bias, pixels)
            return result.view(images, height, width, columns).permute(0, 3, 1, 2)

        return finished(compute, finish_epilogue(problem), 1)


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
