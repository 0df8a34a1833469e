"""Reductions along axes, extreme positions, running sums and the largest few, on torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from brisk.solutions.base import Kernel, Problem
from brisk.solutions.rules import BOOLEAN, FLOATS, INDICES, NUMBERS, Rule, bind, single, takes
from brisk.solutions.values import Value

Axes = tuple[int, ...]
Reduce = Callable[[torch.Tensor, Axes, bool], torch.Tensor]
"""Takes the tensor, the axes to reduce, all named, and whether they stay with size 1."""


def _maximum(x: torch.Tensor, axes: Axes, keep: bool) -> torch.Tensor:
    if x.numel() == 0:
        return torch.full_like(_sum(x, axes, keep), _ends(x.dtype)[0])
    return torch.amax(x, axes, keepdim=keep)


def _minimum(x: torch.Tensor, axes: Axes, keep: bool) -> torch.Tensor:
    if x.numel() == 0:
        return torch.full_like(_sum(x, axes, keep), _ends(x.dtype)[1])
    return torch.amin(x, axes, keepdim=keep)


def _ends(dtype: torch.dtype) -> tuple[float, float]:
    """The least and the greatest value: what the extremes of no elements are."""
    if dtype.is_floating_point:
        return float("-inf"), float("inf")
    if dtype is torch.bool:
        return False, True
    limits = torch.iinfo(dtype)
    return limits.min, limits.max


def _sum(x: torch.Tensor, axes: Axes, keep: bool) -> torch.Tensor:
    return torch.sum(x, axes, keepdim=keep, dtype=x.dtype)


def _product(x: torch.Tensor, axes: Axes, keep: bool) -> torch.Tensor:
    for axis in sorted((axis % x.dim() for axis in axes), reverse=True):
        x = torch.prod(x, axis, keepdim=keep, dtype=x.dtype)
    return x


def _l1(x: torch.Tensor, axes: Axes, keep: bool) -> torch.Tensor:
    return _sum(x.abs(), axes, keep)


def _l2(x: torch.Tensor, axes: Axes, keep: bool) -> torch.Tensor:
    return torch.linalg.vector_norm(x, dim=axes, keepdim=keep)


def _log_sum(x: torch.Tensor, axes: Axes, keep: bool) -> torch.Tensor:
    return torch.log(_sum(x, axes, keep))


def _sum_square(x: torch.Tensor, axes: Axes, keep: bool) -> torch.Tensor:
    return _sum(x * x, axes, keep)


_ELEMENT_MAPS: dict[Reduce, Callable[[torch.Tensor], torch.Tensor]] = {
    _l1: torch.abs,
    _l2: torch.abs,
    _log_sum: torch.log,
    _sum_square: torch.square,
}
"""What a reduction over no axes does to each element; the others nothing."""


def _loader(function: Reduce) -> Callable[[Problem], Kernel]:
    def load(problem: Problem) -> Kernel:
        keep = bool(problem.attribute("keepdims", 1))
        empty_means_none = bool(problem.attribute("noop_with_empty_axes", 0))
        on_element: Callable[[torch.Tensor], Any] = _ELEMENT_MAPS.get(function, lambda x: x)

        def reduce(x: torch.Tensor, axes: Sequence[int] | None = None) -> torch.Tensor:
            if not axes:
                if empty_means_none:
                    return on_element(x)
                axes = range(x.dim())
            return function(x, tuple(axes), keep) if x.dim() else on_element(x)

        return bind(problem, reduce, numbers={1})

    return load


def _load_extreme_place(function: Callable[..., torch.Tensor]) -> Callable[[Problem], Kernel]:
    def load(problem: Problem) -> Kernel:
        axis = problem.attribute("axis", 0)
        keep = bool(problem.attribute("keepdims", 1))
        if not problem.attribute("select_last_index", 0):
            return bind(problem, lambda x: function(x, axis, keepdim=keep))

        def last(x: torch.Tensor) -> torch.Tensor:
            return x.shape[axis] - 1 - function(x.flip(axis), axis, keepdim=keep)

        return bind(problem, last)

    return load


def _running(function: Callable[..., torch.Tensor], start: int) -> Callable[[Problem], Kernel]:
    """``start`` is what an exclusive run begins with."""

    def load(problem: Problem) -> Kernel:
        exclusive = problem.attribute("exclusive", 0)
        reverse = problem.attribute("reverse", 0)

        def run(x: torch.Tensor, axis: Any) -> torch.Tensor:
            axis = single(axis)
            if reverse:
                x = x.flip(axis)
            total = function(x, axis, dtype=x.dtype)
            if exclusive:
                first = torch.full_like(total.narrow(axis, 0, 1), start)
                total = torch.cat((first, total.narrow(axis, 0, x.shape[axis] - 1)), axis)
            return total.flip(axis) if reverse else total

        return bind(problem, run, numbers={1})

    return load


def _load_top(problem: Problem) -> Kernel:
    """Equal elements keep their order, as the definition asks: hence a stable sort."""
    axis = problem.attribute("axis", -1)
    largest = bool(problem.attribute("largest", 1))

    def top(x: torch.Tensor, count: int) -> Sequence[Value]:
        values, places = torch.sort(x, dim=axis, descending=largest, stable=True)
        return values.narrow(axis, 0, count), places.narrow(axis, 0, count)

    if problem.is_dynamic(1):
        return lambda x, count: top(x, int(count))
    fixed = single(problem.constant(1))
    return lambda x: top(x, fixed)


def _check_top(problem: Problem) -> str | None:
    if not problem.is_dynamic(0):
        return "sorts a constant"
    return takes(NUMBERS, INDICES)(problem)


_REDUCTIONS: dict[str, tuple[Reduce, frozenset[str], int]] = {
    "ReduceSum": (_sum, NUMBERS, 13),
    "ReduceMean": (torch.mean, FLOATS, 18),
    "ReduceMax": (_maximum, NUMBERS | BOOLEAN, 18),
    "ReduceMin": (_minimum, NUMBERS | BOOLEAN, 18),
    "ReduceProd": (_product, NUMBERS, 18),
    "ReduceL1": (_l1, NUMBERS, 18),
    "ReduceL2": (_l2, FLOATS, 18),
    "ReduceLogSum": (_log_sum, FLOATS, 18),
    "ReduceLogSumExp": (torch.logsumexp, FLOATS, 18),
    "ReduceSumSquare": (_sum_square, NUMBERS, 18),
}

REDUCTION: dict[str, Rule] = {
    **{
        name: Rule(_loader(function), takes(dtypes, INDICES), since)
        for name, (function, dtypes, since) in _REDUCTIONS.items()
    },
    "ArgMax": Rule(_load_extreme_place(torch.argmax), takes(NUMBERS)),
    "ArgMin": Rule(_load_extreme_place(torch.argmin), takes(NUMBERS)),
    "CumSum": Rule(_running(torch.cumsum, 0), takes(NUMBERS, INDICES)),
    "CumProd": Rule(_running(torch.cumprod, 1), takes(NUMBERS, INDICES)),
    "TopK": Rule(_load_top, _check_top, since=10),
}
