"""Convolutions, matrix products and pools as steps."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from brisk.compiled.layer import MOST_TAPS
from brisk.compiled.table import Kind
from brisk.native.drawing import (
    DEPTHWISE_PER_NS,
    ELEMENTS_PER_NS,
    MULTIPLICATIONS_PER_NS,
    count_time,
    finish,
    pair,
    sizes_of,
    source_of,
    weights_of,
)
from brisk.native.sketch import RefusedError, Sketch, Step
from brisk.solutions.base import Problem
from brisk.solutions.convolution_blocked import BlockedConvolution
from brisk.solutions.convolution_geometry import Geometry, read_geometry
from brisk.solutions.gemm import ConstantMatrix
from brisk.solutions.pooling_window import read_window

MOST_MULTIPLICATIONS = 4_000_000
"""Of one layer and image. Beyond, oneDNN's faster arithmetic outweighs its cost per call."""

LAYER_PER_NS: Mapping[int, float] = {0: 45.0, 2: 100.0, 4: 150.0}
"""Multiplications of the plain definition, by unit: medians of three networks' layers (Zen 4)."""

MOST_DEPTHWISE = 8_000_000
"""The same of a depthwise convolution, where oneDNN's is no faster: its run stays below 1 ms."""


def draw_convolution(problem: Problem, sketch: Sketch) -> None:
    source, geometry = source_of(problem, sketch), read_geometry(problem)
    if isinstance(geometry, str) or geometry.same is not None or len(geometry.kernel) != 2:
        raise RefusedError("not a convolution in two dimensions of known padding")
    weights, bias = weights_of(problem.operand(1)), problem.operand(2)
    channels, height, width = sizes_of(source.type, sketch)
    is_depthwise = geometry.group == channels == weights.shape[0] and channels > 1
    if geometry.group != 1 and not is_depthwise:
        raise RefusedError(f"{geometry.group} groups")
    if min(*geometry.begin, *geometry.end) < 0:
        raise RefusedError("negative padding")
    below, right = geometry.output_sizes((height, width))
    count = weights.size * below * right
    most = MOST_DEPTHWISE if is_depthwise else MOST_MULTIPLICATIONS
    if count > most:
        raise RefusedError(f"{count} multiplications an image, at most {most}")
    if is_depthwise and math.prod(geometry.kernel) > MOST_TAPS:
        raise RefusedError(f"a window of {math.prod(geometry.kernel)} taps, at most {MOST_TAPS}")
    read = sketch.value(
        source.name, (0, 0, 0, 0) if is_depthwise else _border(geometry, height, width)
    )
    target, second, activation = finish(problem, sketch, (weights.shape[0], below, right))
    sketch.steps.append(
        Step(
            Kind.DEPTHWISE if is_depthwise else Kind.CONVOLUTION,
            read,
            target,
            second,
            activation,
            kernel=pair(geometry.kernel),
            strides=pair(geometry.strides),
            dilations=pair(geometry.dilations),
            before=pair(geometry.begin),
            weights=weights,
            bias=None if bias is None else weights_of(bias),
        )
    )
    rate = DEPTHWISE_PER_NS if is_depthwise else MULTIPLICATIONS_PER_NS
    count_time(sketch, count / rate, weights.nbytes)


def draw_large_convolution(
    problem: Problem, solution: BlockedConvolution, place: int, sketch: Sketch
) -> None:
    """A convolution by the kernel of ``solution``, whose unit is one of ``LAYER_PER_NS``.

    Its weights are those of layer ``place``.
    """
    source, geometry = source_of(problem, sketch), read_geometry(problem)
    weight = problem.operand(1)
    if isinstance(geometry, str) or geometry.same is not None or weight is None:
        raise RefusedError("not a convolution of known padding")
    if weight.constant is None:
        raise RefusedError("weights that are not constant")
    outputs, sizes = weight.constant.shape[0], sizes_of(source.type, sketch)
    below, right = geometry.output_sizes(sizes[1:])
    read = sketch.flat(source.name)
    target, second, activation = finish(problem, sketch, (outputs, below, right))
    if second is not None:
        second = sketch.flat(problem.epilogue_operands[0].name)
    target.area.is_dense = True
    sketch.steps.append(
        Step(
            *(Kind.LAYER, read, target, second, activation),
            kernel=pair(geometry.kernel),
            strides=pair(geometry.strides),
            dilations=pair(geometry.dilations),
            before=pair(geometry.begin),
            member=place,
            unit=solution.unit,
        )
    )
    pixels = below * right
    computing_ns = weight.constant.size * pixels / LAYER_PER_NS[solution.unit]
    image_ns = computing_ns + outputs * pixels / ELEMENTS_PER_NS
    count_time(sketch, image_ns, weight.constant.nbytes)


def _border(geometry: Geometry, height: int, width: int) -> tuple[int, int, int, int]:
    """Zeros that the taps read above, left of, below and right of an image."""
    far = []
    for axis, (size, out) in enumerate(
        zip((height, width), geometry.output_sizes((height, width)), strict=True)
    ):
        span = geometry.dilations[axis] * (geometry.kernel[axis] - 1) + 1
        last = (out - 1) * geometry.strides[axis] + span - geometry.begin[axis]
        far.append(max(last - size, 0))
    return geometry.begin[0], geometry.begin[1], far[0], far[1]


def draw_product(problem: Problem, sketch: Sketch) -> None:
    source, solution = source_of(problem, sketch), ConstantMatrix()
    verdict = solution.check(problem)
    if not verdict.ok:
        raise RefusedError(verdict.reason)
    sizes = sizes_of(source.type, sketch)
    if not 1 <= len(sizes) <= 2:
        raise RefusedError(f"a product of rank {len(sizes) + 1}")
    weights = solution.transform(problem)
    matrix = np.ascontiguousarray(weights["matrix"].t().numpy())
    rows = math.prod(sizes[:-1])
    if matrix.size * rows > MOST_MULTIPLICATIONS:
        raise RefusedError(f"{matrix.size * rows} multiplications an image")
    bias = weights.get("bias")
    read = sketch.value(source.name)
    target, second, activation = finish(problem, sketch, (*sizes[:-1], len(matrix)))
    sketch.steps.append(
        Step(
            *(Kind.CONVOLUTION, read, target, second, activation),
            weights=matrix,
            bias=None if bias is None else np.ascontiguousarray(bias.numpy()),
        )
    )
    count_time(sketch, rows * matrix.size / MULTIPLICATIONS_PER_NS, matrix.nbytes)


def draw_pool(problem: Problem, sketch: Sketch) -> None:
    source = source_of(problem, sketch)
    sizes = sizes_of(source.type, sketch)
    if len(sizes) != 3:
        raise RefusedError("not a pool in two dimensions")
    channels, *plane = sizes
    kind = Kind.MAXIMUM_POOL if "Max" in problem.operator else Kind.AVERAGE_POOL
    if problem.operator.startswith("Global"):
        kernel, strides, dilations, before = pair(tuple(plane)), (1, 1), (1, 1), (0, 0)
        result: tuple[int, ...] = (channels, 1, 1)
    else:
        window = read_window(problem)
        if window.same is not None or window.ceil:
            raise RefusedError("padded to fit, or rounded up")
        pads = (*window.pads_before, *window.pads_after)
        if min(pads) < 0 or any(p >= k for p, k in zip(pads, 2 * window.kernel, strict=True)):
            raise RefusedError("windows that lie in the padding")
        kernel, strides = pair(window.kernel), pair(window.strides)
        dilations, before = pair(window.dilations), pair(window.pads_before)
        result = (channels, *sizes_of(problem.outputs[0], sketch)[1:])
    read = sketch.value(source.name)
    target, second, activation = finish(problem, sketch, result)
    if second is not None:
        raise RefusedError("a sum behind a pool")
    counts = bool(problem.attributes.get("count_include_pad", 0))
    sketch.steps.append(
        Step(
            kind,
            read,
            target,
            None,
            activation,
            1.0,
            0.0,
            kernel,
            strides,
            dilations,
            before,
            counts,
        )
    )
    count_time(sketch, math.prod(result) * math.prod(kernel) / ELEMENTS_PER_NS)
