"""Pooling on torch: its own kernels where the padding is theirs, padded ahead elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from brisk.solutions.base import Kernel, Problem
from brisk.solutions.images.window import Window, read_window, refuse_rank, refuse_window
from brisk.solutions.rules import FLOATS, NUMBERS, Check, Rule, bind, both, calls, several, takes

_MAXIMUM: dict[int, Any] = {
    1: functional.max_pool1d,
    2: functional.max_pool2d,
    3: functional.max_pool3d,
}
_AVERAGE: dict[int, Any] = {
    1: functional.avg_pool1d,
    2: functional.avg_pool2d,
    3: functional.avg_pool3d,
}


def _is_native(window: Window) -> bool:
    """torch's own kernels pad both sides alike, by half the window at most."""
    pads = zip(window.before, window.kernel, strict=True)
    return window.is_symmetric and all(2 * pad <= size for pad, size in pads)


def _load_maximum(problem: Problem) -> Kernel:
    window = read_window(problem)
    native = _MAXIMUM.get(window.axes)
    if native is None or problem.dtype() not in FLOATS:
        return bind(problem, lambda x: _largest(x, window))
    is_native = _is_native(window)
    pads, ceil = (window.before, window.ceil) if is_native else (0, False)
    call = partial(native, ceil_mode=ceil, return_indices=len(problem.node.outputs) > 1)
    places = (window.kernel, window.strides, pads, window.dilations)

    def with_places(x: Tensor) -> Any:
        """torch counts places within a plane, ONNX from the start of the tensor."""
        y, found = call(x, *places)
        planes = torch.arange(x.shape[0] * x.shape[1], device=x.device)
        first = planes.reshape(*x.shape[:2], *[1] * window.axes) * math.prod(x.shape[2:])
        return y, found + first

    if len(problem.node.outputs) > 1:
        return several(calls(with_places))(problem)
    if is_native:
        return bind(problem, lambda x: call(x, *places))
    return bind(problem, lambda x: call(window.pad(x, float("-inf")), *places))


def _largest(x: Tensor, window: Window) -> Tensor:
    limits: Any = torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)
    return window.slide(window.pad(x, limits.min)).amax(window.inner_axes)


def _check_maximum(problem: Problem) -> str | None:
    with_places = len(problem.node.outputs) > 1
    reason = _over_windows(FLOATS if with_places else NUMBERS)(problem)
    if reason is not None or not with_places:
        return reason
    if problem.attribute("storage_order", 0):
        return "positions in column-major order"
    window = read_window(problem)
    if window.axes not in _MAXIMUM or not _is_native(window):
        return "positions with uneven padding"
    return None


def _over_windows(dtypes: Collection[str]) -> Check:
    return both(refuse_window, takes(dtypes))


def _load_average(problem: Problem) -> Kernel:
    window = read_window(problem)
    native = _AVERAGE.get(window.axes)
    with_pads = bool(problem.attribute("count_include_pad", 0))
    kernel, strides, pads, ceil = window.kernel, window.strides, window.before, window.ceil
    if native is not None and _is_native(window) and max(window.dilations) == 1:
        return bind(problem, lambda x: native(x, kernel, strides, pads, ceil, with_pads))

    def average(x: Tensor) -> Tensor:
        """Sums of windows padded with zeros, by the number of elements that count."""
        total = window.slide(window.pad(x, 0)).sum(window.inner_axes)
        return total / window.slide(window.mask(x, with_pads)).sum(window.inner_axes)

    return bind(problem, average)


_norm: Any = torch.linalg.vector_norm


def _load_lp(problem: Problem) -> Kernel:
    window, power = read_window(problem), problem.attribute("p", 2)
    inner = window.inner_axes
    return bind(problem, lambda x: _norm(window.slide(window.pad(x, 0)), power, inner))


def _over_all(function: Callable[..., Tensor]) -> Rule:
    def load(problem: Problem) -> Kernel:
        axes = tuple(range(2, problem.rank() or 2))
        power = [problem.attribute("p", 2)] if problem.operator == "GlobalLpPool" else []
        return bind(problem, lambda x: function(x, *power, axes, keepdim=True))

    return Rule(load, both(refuse_rank, takes(FLOATS)))


POOLING: dict[str, Rule] = {
    "MaxPool": Rule(_load_maximum, _check_maximum),
    "AveragePool": Rule(_load_average, _over_windows(FLOATS)),
    "LpPool": Rule(_load_lp, _over_windows(FLOATS)),
    "GlobalAveragePool": _over_all(torch.mean),
    "GlobalMaxPool": _over_all(torch.amax),
    "GlobalLpPool": _over_all(_norm),
}
