"""Convolutions by the compiled library: as one product, or with Winograd's fewer multiplications.

Winograd: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2015). Tiles of 2 x 2
outputs take 2.25 times fewer multiplications than 3 x 3 taps, and their rounding errors are those
of the direct form; tiles of 4 x 4 take 4 times fewer, with errors about ten times as large, of the
order of 1e-5 of the outputs. They take 16 and 36 weights for 9, so that small maps, whose time is
that of reading weights, take the smaller tiles or none. An infinite input makes its whole tile
NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from brisk.graph.program import Dimension
from brisk.solutions.base import Kernel, LoadContext, Pattern, Problem, Solution, Verdict, refused
from brisk.solutions.compiled_layer import (
    CompiledLayer,
    Fused,
    fuse,
    library_refusal,
    padded_bias,
    panels,
)
from brisk.solutions.convolution import OneDnnConvolution
from brisk.solutions.convolution_geometry import Geometry, read_geometry
from brisk.solutions.convolution_small import multiplications
from brisk.solutions.epilogue import constant_tensor, finish_epilogue

FEWEST_MULTIPLICATIONS = 4_000_000
"""Of one image. Smaller layers belong to ``brisk.native``, and cost a call each otherwise."""

FEWEST_CHANNELS = 16
"""Below, putting the taps together costs more than the library gains."""

SMALL_MAP, LARGE_MAP = 100, 400
"""Pixels of a result, from which tiles of 2 x 2 and 4 x 4 pay."""

_TRANSFORMS: Mapping[int, Sequence[Sequence[float]]] = {
    2: ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),
    4: (
        *((1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6)),
        *((1 / 24, 1 / 12, 1 / 6), (1 / 24, -1 / 12, 1 / 6), (0, 0, 1)),
    ),
}
"""G of section 4.1, by the outputs a side of a tile."""


class BlockedConvolution(Solution):
    """Conv in two dimensions, of one group, with constant weights; any batch and sizes."""

    name = "blocked_convolution"
    pattern = Pattern.GEMM
    transforms_long = True
    unit: ClassVar[int] = 0

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({("", "Conv")})

    def check(self, problem: Problem) -> Verdict:
        verdict = OneDnnConvolution().check(problem)
        if not verdict.ok:
            return verdict
        weight, geometry = problem.operand(1), read_geometry(problem)
        assert weight is not None
        assert weight.constant is not None
        assert isinstance(geometry, Geometry)
        reason = self._refusal(problem, geometry, weight.constant.shape)
        reason = reason or library_refusal(problem)
        return verdict if reason is None else refused(reason)

    def _refusal(
        self, problem: Problem, geometry: Geometry, weight: tuple[int, ...]
    ) -> str | None:
        """Why this form is not for a convolution with a weight of that shape; None where it is."""
        if len(geometry.kernel) != 2 or geometry.group != 1:
            return "not in two dimensions, or of several groups"
        if weight[1] < FEWEST_CHANNELS:
            return f"{weight[1]} channels, at least {FEWEST_CHANNELS}"
        count = multiplications(problem, geometry)
        if count is not None and count < FEWEST_MULTIPLICATIONS:
            return f"{count} multiplications an image, at least {FEWEST_MULTIPLICATIONS}"
        return None

    def transform(self, problem: Problem) -> Mapping[str, torch.Tensor]:
        """``panels`` and ``bias`` as the library wants them, plain float32 tensors."""
        weight = constant_tensor(problem, 1)
        assert weight is not None
        bias = padded_bias(constant_tensor(problem, 2), weight.shape[0])
        return {"panels": panels(self._matrices(weight)), "bias": bias}

    def _matrices(self, weight: torch.Tensor) -> torch.Tensor:
        """(…, inputs, outputs)."""
        return weight.permute(2, 3, 1, 0).reshape(-1, weight.shape[0])

    def transformed_operands(self, problem: Problem) -> frozenset[int]:
        return frozenset({1, 2})

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        geometry, weight = read_geometry(problem), problem.operand(1)
        assert isinstance(geometry, Geometry)
        assert weight is not None
        assert weight.constant is not None
        outputs = weight.constant.shape[0]
        channels = weight.constant.shape[1] * geometry.group

        def made(fused: Fused) -> CompiledLayer:
            return CompiledLayer(
                weights,
                channels,
                outputs,
                fused,
                unit=self.unit,
                kernel=geometry.kernel,
                strides=geometry.strides,
                dilations=geometry.dilations,
                before=geometry.begin,
            )

        fused = fuse(problem, _result_dimensions(problem, geometry, outputs))
        layer, plain = made(fused), made(Fused()) if fused.adds else None
        finish = finish_epilogue(problem, fused.steps)
        finish_all = finish_epilogue(problem)

        def kernel(source: torch.Tensor, *operands: torch.Tensor) -> Sequence[torch.Tensor]:
            sizes = geometry.output_sizes(source.shape[2:])
            if source.shape[1] != channels or min(sizes) < 1:
                raise ValueError(
                    f"a convolution of {channels} channels and {geometry.kernel} taps cannot take "
                    f"an input of shape {tuple(source.shape)}"
                )
            if not source.shape[0]:
                result = source.new_empty((0, outputs, *sizes))
                return (result if finish_all is None else finish_all(result, operands),)
            if plain is None:
                result = layer.compute_map(source, sizes)
            elif operands[0].shape == (source.shape[0], outputs, *sizes):
                result, operands = layer.compute_map(source, sizes, operands[0]), operands[1:]
            else:
                result = plain.compute_map(source, sizes)
                assert finish_all is not None
                return (finish_all(result, operands),)
            return (result if finish is None else finish(result, operands),)

        return kernel


class WinogradConvolution(BlockedConvolution):
    """Conv of 3 x 3 taps, neither strided nor dilated, by tiles of 2 x 2 outputs."""

    name = "winograd_convolution"
    pattern = Pattern.WINOGRAD
    unit = 2

    def check(self, problem: Problem) -> Verdict:
        verdict = super().check(problem)
        if not verdict.ok:
            return verdict
        weight, geometry = problem.operand(1), read_geometry(problem)
        assert weight is not None
        assert weight.constant is not None
        assert isinstance(geometry, Geometry)
        if geometry.kernel != (3, 3) or {*geometry.strides, *geometry.dilations} != {1}:
            return refused("not 3 x 3 taps side by side, at every pixel")
        outputs, channels = weight.constant.shape[:2]
        if channels % 16 or min(outputs, channels) < 32:
            return refused(f"{channels} to {outputs} channels: not 32 at least, of whole vectors")
        return self._check_pixels(
            multiplications(problem, geometry), weight.constant.size, verdict
        )

    def _check_pixels(self, products: int | None, weights: int, verdict: Verdict) -> Verdict:
        if products is not None and not SMALL_MAP <= products // weights < LARGE_MAP:
            return refused(f"{products // weights} pixels, {SMALL_MAP} to {LARGE_MAP} pay")
        return verdict if products is not None else refused("the sizes are not known")

    def _matrices(self, weight: torch.Tensor) -> torch.Tensor:
        outputs, channels = weight.shape[:2]
        rows = torch.tensor(_TRANSFORMS[self.unit])
        turned = rows @ weight.permute(2, 3, 1, 0).reshape(3, -1)
        turned = rows @ turned.view(len(rows), 3, -1)
        return turned.view(-1, channels, outputs)


class WideWinogradConvolution(WinogradConvolution):
    """The same by tiles of 4 x 4 outputs; also where the sizes are not known."""

    name = "wide_winograd_convolution"
    unit = 4

    def _check_pixels(self, products: int | None, weights: int, verdict: Verdict) -> Verdict:
        if products is not None and products // weights < LARGE_MAP:
            return refused(f"{products // weights} pixels, at least {LARGE_MAP}")
        return verdict


def _result_dimensions(
    problem: Problem, geometry: Geometry, outputs: int
) -> tuple[Dimension, ...]:
    source = problem.operand(0)
    assert source is not None
    shape = source.type.shape or ()
    return (shape[0], outputs, *geometry.output_dimensions(shape[2:]))


SOLUTIONS: tuple[Solution, ...] = (
    WideWinogradConvolution(),
    WinogradConvolution(),
    BlockedConvolution(),
)
