"""Pooling on torch: its own kernels where the padding is theirs, padded ahead elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.nn import functional

from brisk.solutions.base import Kernel, Problem, Solution, Value
from brisk.solutions.images.pooling_window import read_window
from brisk.solutions.rules import (
    FLOATS,
    NUMBERS,
    Check,
    Rule,
    RuleFamily,
    attribute,
    bind,
    is_dynamic,
    rank,
    takes,
)

_MAXIMUM: dict[int, Any] = {
    1: functional.max_pool1d,
    2: functional.max_pool2d,
    3: functional.max_pool3d,
}
_MAXIMUM_ALONE: dict[int, Any] = {
    1: torch.max_pool1d,
    2: torch.max_pool2d,
    3: torch.max_pool3d,
}
_AVERAGE: dict[int, Any] = {
    1: torch.avg_pool1d,
    2: torch._C._nn.avg_pool2d,
    3: torch._C._nn.avg_pool3d,
}


def _load_maximum(problem: Problem) -> Kernel:
    window = read_window(problem)
    native = _MAXIMUM.get(window.axes)
    operand = problem.operands[0]
    if native is None or operand is None or operand.type.dtype not in FLOATS:
        return bind(problem, lambda x: window.slide(x, _lowest(x)).amax(window.inner_axes))
    kernel, strides, dilations = window.kernel, window.strides, window.dilations
    if not window.is_native:

        def pad_and_pool(x: torch.Tensor) -> torch.Tensor:
            return native(window.pad(x, float("-inf")), kernel, strides, 0, dilations)

        return bind(problem, pad_and_pool)
    pads, ceil = window.pads_before, window.ceil
    if len(problem.layer.main.outputs) == 1:
        direct = _MAXIMUM_ALONE[window.axes]
        return bind(problem, lambda x: direct(x, kernel, strides, pads, dilations, ceil))

    def with_places(x: torch.Tensor) -> Sequence[Value]:
        """torch counts places within a plane, ONNX from the start of the tensor."""
        y, places = native(x, kernel, strides, pads, dilations, ceil, return_indices=True)
        planes = torch.arange(x.shape[0] * x.shape[1], device=x.device)
        first = planes.reshape(*x.shape[:2], *[1] * window.axes) * math.prod(x.shape[2:])
        return y, places + first

    return with_places


def _lowest(x: torch.Tensor) -> Any:
    limits: Any = torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)
    return limits.min


def _check_maximum(problem: Problem) -> str | None:
    if len(problem.layer.main.outputs) > 1:
        if not is_dynamic(problem, 0):
            return "pools a constant"
        if attribute(problem, "storage_order", 0):
            return "positions in column-major order"
        if rank(problem) is None or not read_window(problem).is_native:
            return "positions with uneven padding"
        return _check_window(FLOATS)(problem)
    return _check_window(NUMBERS)(problem)


def _check_window(dtypes: frozenset[str]) -> Check:
    def check(problem: Problem) -> str | None:
        if (rank(problem) or 0) < 3:
            return "unknown rank or no spatial axis"
        return takes(dtypes)(problem)

    return check


def _load_average(problem: Problem) -> Kernel:
    window = read_window(problem)
    native = _AVERAGE.get(window.axes)
    with_pads = bool(attribute(problem, "count_include_pad", 0))
    kernel, strides = window.kernel, window.strides
    if native is not None and window.is_native and not window.is_dilated:
        pads, ceil = window.pads_before, window.ceil
        return bind(problem, lambda x: native(x, kernel, strides, pads, ceil, with_pads))

    def average(x: torch.Tensor) -> torch.Tensor:
        """Sums of windows padded with zeros, by the number of elements that count."""
        inner = window.inner_axes
        mask = window.mask(x, with_pads)
        return window.slide(x, 0).sum(inner) / window.slide_padded(mask).sum(inner)

    return bind(problem, average)


def _load_lp(problem: Problem) -> Kernel:
    window = read_window(problem)
    power = attribute(problem, "p", 2)

    def pool(x: torch.Tensor) -> torch.Tensor:
        total = window.slide(x.abs().pow(power), 0).sum(window.inner_axes)
        return total.pow(1.0 / power)

    return bind(problem, pool)


def _global(function: Callable[..., torch.Tensor]) -> Callable[[Problem], Kernel]:
    def load(problem: Problem) -> Kernel:
        axes = tuple(range(2, rank(problem) or 2))
        return bind(problem, lambda x: function(x, axes, keepdim=True))

    return load


_MOST_AVERAGED = 64
"""Places of a plane up to which torch's pooling is quicker than its reduction."""


def _load_global_average(problem: Problem) -> Kernel:
    operand = problem.operands[0]
    channels, *sizes = (operand.type.shape or ("",))[1:] if operand is not None else ("",)
    known = [size for size in (channels, *sizes) if isinstance(size, int) and size > 0]
    mean = _global(torch.mean)
    if len(known) != 3 or len(sizes) != 2 or math.prod(known[1:]) > _MOST_AVERAGED:
        return mean(problem)
    window = tuple(known[1:])
    average = _AVERAGE[2]

    def pool(x: torch.Tensor) -> torch.Tensor:
        if x.stride(1) == 1:
            return average(x, window)
        return torch.mean(x, (2, 3), keepdim=True)

    return bind(problem, pool)


def _load_global_lp(problem: Problem) -> Kernel:
    power = float(attribute(problem, "p", 2))
    axes = tuple(range(2, rank(problem) or 2))
    norm: Any = torch.linalg.vector_norm
    return bind(problem, lambda x: norm(x, power, axes, keepdim=True))


_RULES: dict[str, Rule] = {
    "MaxPool": Rule(_load_maximum, _check_maximum),
    "AveragePool": Rule(_load_average, _check_window(FLOATS), since=7),
    "LpPool": Rule(_load_lp, _check_window(FLOATS), since=2),
    "GlobalAveragePool": Rule(_load_global_average, _check_window(FLOATS)),
    "GlobalMaxPool": Rule(_global(torch.amax), _check_window(FLOATS)),
    "GlobalLpPool": Rule(_load_global_lp, _check_window(FLOATS), since=2),
}


class Pooling(RuleFamily):
    name = "pooling"
    rules: ClassVar[Mapping[tuple[str, str], Rule]] = {
        ("", name): rule for name, rule in _RULES.items()
    }


SOLUTIONS: Sequence[Solution] = (Pooling(),)
