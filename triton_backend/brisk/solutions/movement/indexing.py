"""Elements picked by position or condition, and written into a copy by position.

Functions take ONNX's attributes under their names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from brisk.solutions.base import Kernel, Problem
from brisk.solutions.rules import BOOLEAN, INDICES, MOVED, Rule, bind, both, calls, single, takes


def _slice(
    x: Tensor,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> Tensor:
    for i, axis in enumerate(range(len(starts)) if axes is None else axes):
        step = 1 if steps is None else steps[i]
        first, last, _ = slice(starts[i], ends[i], step).indices(x.shape[axis])
        if step > 0:
            x = torch.ops.aten.slice.Tensor(x, axis, first, last, step)
        else:
            places = torch.tensor(range(first, last, step), dtype=torch.int64, device=x.device)
            x = x.index_select(axis, places)
    return x


def _counted_from_start(places: Tensor, size: int) -> Tensor:
    return torch.where(places < 0, places + size, places)


def _load_gather(problem: Problem) -> Kernel:
    axis = problem.attribute("axis", 0)
    place = problem.constant(1)
    if isinstance(place, int):
        return bind(problem, lambda x, _: x.select(axis, place))
    if isinstance(place, list) and len(place) == 1 and isinstance(place[0], int):
        return bind(problem, lambda x, _: x.narrow(axis, place[0], 1))

    def gather(x: Tensor, places: Tensor) -> Tensor:
        at = axis % x.dim()
        places = _counted_from_start(places, x.shape[at])
        picked = x.index_select(at, places.reshape(-1))
        return picked.reshape(x.shape[:at] + places.shape + x.shape[at + 1 :])

    return bind(problem, gather)


def _gather_elements(x: Tensor, places: Tensor, axis: int) -> Tensor:
    return torch.gather(x, axis, _counted_from_start(places, x.shape[axis]).long())


def _gather_nd(x: Tensor, places: Tensor, batch_dims: int) -> Tensor:
    """The last axis of ``places`` indexes the axes behind the common ones."""
    index: list[Tensor] = []
    for axis in range(batch_dims):
        lanes = torch.arange(x.shape[axis], device=x.device)
        index.append(lanes.reshape([-1 if i == axis else 1 for i in range(places.dim() - 1)]))
    index += [column.long() for column in places.unbind(-1)]
    return x[tuple(index)]


def _compress(x: Tensor, condition: Tensor, axis: int | None) -> Tensor:
    places = condition.nonzero().squeeze(1)
    if axis is None:
        return x.reshape(-1).index_select(0, places)
    return x.index_select(axis, places)


def _trilu(x: Tensor, k: Any = None, *, upper: int) -> Tensor:
    return (torch.triu if upper else torch.tril)(x, single(k) or 0)


def _reverse(x: Tensor, lengths: Tensor, batch_axis: int, time_axis: int) -> Tensor:
    """Each batch row's first ``lengths[row]`` steps backwards, the others in place."""
    steps = torch.arange(x.shape[time_axis], device=x.device)
    ends = lengths.unsqueeze(1)
    places = torch.where(steps < ends, ends - 1 - steps, steps)
    shape = [1] * x.dim()
    shape[batch_axis], shape[time_axis] = x.shape[batch_axis], x.shape[time_axis]
    places = (places if batch_axis < time_axis else places.t()).reshape(shape)
    return torch.gather(x, time_axis, places.expand(x.shape))


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _write(x: Tensor, axis: int, places: Tensor, updates: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return x.scatter(axis, places, updates)
    return x.scatter_reduce(axis, places, updates, _REDUCTIONS[reduction], include_self=True)


def _scatter_elements(
    x: Tensor, places: Tensor, updates: Tensor, axis: int, reduction: str
) -> Tensor:
    places = _counted_from_start(places, x.shape[axis]).long()
    return _write(x, axis, places, updates, reduction)


def _scatter_nd(x: Tensor, places: Tensor, updates: Tensor, reduction: str) -> Tensor:
    """``places[..., :]`` addresses a block of the leading axes; blocks are rows of a matrix."""
    depth = places.shape[-1]
    rows = torch.zeros(places.shape[:-1], dtype=torch.int64, device=x.device)
    for size, column in zip(x.shape[:depth], places.unbind(-1), strict=True):
        rows = rows * size + _counted_from_start(column, size)
    width = math.prod(x.shape[depth:])
    targets = rows.reshape(-1, 1).expand(-1, width)
    values = updates.reshape(rows.numel(), width)
    table = x.reshape(math.prod(x.shape[:depth]), width)
    return _write(table, 0, targets, values, reduction).reshape(x.shape)


def _check_reduction(problem: Problem) -> str | None:
    is_plain = problem.attribute("reduction", "none") == "none"
    return None if is_plain or problem.dtype() != "bool" else "reduces booleans"


_CHECK_SCATTER = both(takes(MOVED, INDICES, MOVED), _check_reduction)

INDEXING: dict[str, Rule] = {
    "Slice": Rule(calls(_slice, 1, 2, 3, 4), takes(MOVED, INDICES)),
    "Gather": Rule(_load_gather, takes(MOVED, INDICES)),
    "GatherElements": Rule(calls(_gather_elements, axis=0), takes(MOVED, INDICES)),
    "GatherND": Rule(calls(_gather_nd, batch_dims=0), takes(MOVED, {"int64"})),
    "Compress": Rule(calls(_compress, axis=None), takes(MOVED, BOOLEAN)),
    "NonZero": Rule(calls(lambda x: x.nonzero().t()), takes(MOVED)),
    "Trilu": Rule(calls(_trilu, 1, upper=1), takes(MOVED, {"int64"})),
    "ReverseSequence": Rule(calls(_reverse, batch_axis=1, time_axis=0), takes(MOVED, {"int64"})),
    "ScatterElements": Rule(calls(_scatter_elements, axis=0, reduction="none"), _CHECK_SCATTER),
    "ScatterND": Rule(calls(_scatter_nd, reduction="none"), _CHECK_SCATTER),
}
