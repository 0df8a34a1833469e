"""Reductions along axes, extreme positions, running sums and the largest few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from brisk.solutions.rules import (
    BOOLEAN,
    FLOATS,
    INDICES,
    NUMBERS,
    Load,
    Rule,
    calls,
    several,
    single,
    takes,
)

Axes = tuple[int, ...]
Reduce = Callable[[Tensor, Axes, bool], Tensor]
"""Takes the tensor, the axes to reduce, all named, and whether they stay with size 1."""


def _extreme(function: Callable[..., Tensor], end: int) -> Reduce:
    """``end``: the place in ``_ends`` of what the extreme of no elements is."""

    def reduce(x: Tensor, axes: Axes, keep: bool) -> Tensor:
        if x.numel() == 0:
            return torch.full_like(_sum(x, axes, keep), _ends(x.dtype)[end])
        return function(x, axes, keepdim=keep)

    return reduce


def _ends(dtype: torch.dtype) -> tuple[float, float]:
    """The least and the greatest value."""
    if dtype.is_floating_point:
        return float("-inf"), float("inf")
    if dtype is torch.bool:
        return False, True
    limits = torch.iinfo(dtype)
    return limits.min, limits.max


def _sum(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    return torch.sum(x, axes, keepdim=keep, dtype=x.dtype)


def _product(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    for axis in sorted((axis % x.dim() for axis in axes), reverse=True):
        x = torch.prod(x, axis, keepdim=keep, dtype=x.dtype)
    return x


def _l2(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    return torch.linalg.vector_norm(x, dim=axes, keepdim=keep)


def _load(
    function: Reduce,
    before: Callable[[Tensor], Tensor] | None = None,
    after: Callable[[Tensor], Tensor] | None = None,
) -> Load:
    """``before`` and ``after``: of each element, over no axes too."""

    def reduce(
        x: Tensor, axes: Sequence[int] | None = None, *, keepdims: int, noop_with_empty_axes: int
    ) -> Tensor:
        x = x if before is None else before(x)
        if x.dim() and (axes or not noop_with_empty_axes):
            x = function(x, tuple(axes or range(x.dim())), bool(keepdims))
        return x if after is None else after(x)

    return calls(reduce, 1, keepdims=1, noop_with_empty_axes=0)


def _load_extreme_place(function: Callable[..., Tensor]) -> Load:
    def place(x: Tensor, axis: int, keepdims: int, select_last_index: int) -> Tensor:
        if not select_last_index:
            return function(x, axis, keepdim=bool(keepdims))
        return x.shape[axis] - 1 - function(x.flip(axis), axis, keepdim=bool(keepdims))

    return calls(place, axis=0, keepdims=1, select_last_index=0)


def _load_running(function: Callable[..., Tensor], start: int) -> Load:
    """``start`` is what an exclusive run begins with."""

    def run(x: Tensor, axis: Any, exclusive: int, reverse: int) -> Tensor:
        axis = single(axis)
        if reverse:
            x = x.flip(axis)
        total = function(x, axis, dtype=x.dtype)
        if exclusive:
            first = torch.full_like(total.narrow(axis, 0, 1), start)
            total = torch.cat((first, total.narrow(axis, 0, x.shape[axis] - 1)), axis)
        return total.flip(axis) if reverse else total

    return calls(run, 1, exclusive=0, reverse=0)


def _top(x: Tensor, count: Any, axis: int, largest: int) -> tuple[Tensor, ...]:
    """Equal elements keep their order, as the definition asks: hence a stable sort."""
    found = torch.sort(x, dim=axis, descending=bool(largest), stable=True)
    return tuple(each.narrow(axis, 0, single(count)) for each in found)


_REDUCTIONS: dict[str, tuple[Load, frozenset[str]]] = {
    "ReduceSum": (_load(_sum), NUMBERS),
    "ReduceMean": (_load(torch.mean), FLOATS),
    "ReduceMax": (_load(_extreme(torch.amax, 0)), NUMBERS | BOOLEAN),
    "ReduceMin": (_load(_extreme(torch.amin, 1)), NUMBERS | BOOLEAN),
    "ReduceProd": (_load(_product), NUMBERS),
    "ReduceL1": (_load(_sum, before=torch.abs), NUMBERS),
    "ReduceL2": (_load(_l2, after=torch.abs), FLOATS),
    "ReduceLogSum": (_load(_sum, after=torch.log), FLOATS),
    "ReduceLogSumExp": (_load(torch.logsumexp), FLOATS),
    "ReduceSumSquare": (_load(_sum, before=torch.square), NUMBERS),
}

REDUCTION: dict[str, Rule] = {
    **{name: Rule(load, takes(dtypes, INDICES)) for name, (load, dtypes) in _REDUCTIONS.items()},
    "ArgMax": Rule(_load_extreme_place(torch.argmax), takes(NUMBERS)),
    "ArgMin": Rule(_load_extreme_place(torch.argmin), takes(NUMBERS)),
    "CumSum": Rule(_load_running(torch.cumsum, 0), takes(NUMBERS, INDICES)),
    "CumProd": Rule(_load_running(torch.cumprod, 1), takes(NUMBERS, INDICES)),
    "TopK": Rule(several(calls(_top, 1, axis=-1, largest=1)), takes(NUMBERS, INDICES)),
}
