"""Elements picked by position or condition, and written into a copy by position."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from brisk.solutions.base import Kernel, Problem
from brisk.solutions.rules import BOOLEAN, INDICES, MOVED, Rule, bind, both, plain, single, takes


def _slice(
    x: torch.Tensor,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> torch.Tensor:
    for i, axis in enumerate(range(len(starts)) if axes is None else axes):
        step = 1 if steps is None else steps[i]
        first, last, _ = slice(starts[i], ends[i], step).indices(x.shape[axis])
        if step > 0:
            x = torch.ops.aten.slice.Tensor(x, axis, first, last, step)
        else:
            places = torch.tensor(range(first, last, step), dtype=torch.int64, device=x.device)
            x = x.index_select(axis, places)
    return x


def _counted_from_start(places: torch.Tensor, size: int) -> torch.Tensor:
    return torch.where(places < 0, places + size, places)


def _load_gather(problem: Problem) -> Kernel:
    axis = problem.attribute("axis", 0)
    place = problem.constant(1)
    if isinstance(place, int):
        return bind(problem, lambda x, _: x.select(axis, place))
    if isinstance(place, list) and len(place) == 1 and isinstance(place[0], int):
        return bind(problem, lambda x, _: x.narrow(axis, place[0], 1))

    def gather(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        at = axis % x.dim()
        places = _counted_from_start(places, x.shape[at])
        picked = x.index_select(at, places.reshape(-1))
        return picked.reshape(x.shape[:at] + places.shape + x.shape[at + 1 :])

    return bind(problem, gather)


def _load_gather_elements(problem: Problem) -> Kernel:
    axis = problem.attribute("axis", 0)

    def gather(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return torch.gather(x, axis, _counted_from_start(places, x.shape[axis]).long())

    return bind(problem, gather)


def _load_gather_nd(problem: Problem) -> Kernel:
    batch = problem.attribute("batch_dims", 0)

    def gather(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """The last axis of ``places`` indexes the axes behind the ``batch`` common ones."""
        index: list[torch.Tensor] = []
        for axis in range(batch):
            lanes = torch.arange(x.shape[axis], device=x.device)
            index.append(lanes.reshape([-1 if i == axis else 1 for i in range(places.dim() - 1)]))
        index += [column.long() for column in places.unbind(-1)]
        return x[tuple(index)]

    return bind(problem, gather)


def _load_compress(problem: Problem) -> Kernel:
    axis = problem.attribute("axis", None)

    def compress(x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        places = condition.nonzero().squeeze(1)
        if axis is None:
            return x.reshape(-1).index_select(0, places)
        return x.index_select(axis, places)

    return bind(problem, compress)


def _load_trilu(problem: Problem) -> Kernel:
    function = torch.triu if problem.attribute("upper", 1) else torch.tril
    return bind(problem, lambda x, k=None: function(x, single(k) or 0), numbers={1})


def _nonzero(x: torch.Tensor) -> torch.Tensor:
    return x.nonzero().t()


def _load_reverse_sequence(problem: Problem) -> Kernel:
    batch, time = problem.attribute("batch_axis", 1), problem.attribute("time_axis", 0)

    def reverse(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Each batch row's first ``lengths[row]`` steps backwards, the others in place."""
        steps = torch.arange(x.shape[time], device=x.device)
        ends = lengths.unsqueeze(1)
        places = torch.where(steps < ends, ends - 1 - steps, steps)
        shape = [1] * x.dim()
        shape[batch], shape[time] = x.shape[batch], x.shape[time]
        places = (places if batch < time else places.t()).reshape(shape)
        return torch.gather(x, time, places.expand(x.shape))

    return bind(problem, reverse)


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _write(
    x: torch.Tensor, axis: int, places: torch.Tensor, updates: torch.Tensor, reduction: str
) -> torch.Tensor:
    if reduction == "none":
        return x.scatter(axis, places, updates)
    return x.scatter_reduce(axis, places, updates, _REDUCTIONS[reduction], include_self=True)


def _load_scatter_elements(problem: Problem) -> Kernel:
    axis = problem.attribute("axis", 0)
    reduction = problem.attribute("reduction", "none")

    def scatter(x: torch.Tensor, places: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
        places = _counted_from_start(places, x.shape[axis]).long()
        return _write(x, axis, places, updates, reduction)

    return bind(problem, scatter)


def _load_scatter_nd(problem: Problem) -> Kernel:
    """``places[..., :]`` addresses a block of the leading axes; blocks are rows of a matrix."""
    reduction = problem.attribute("reduction", "none")

    def scatter(x: torch.Tensor, places: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
        depth = places.shape[-1]
        rows = torch.zeros(places.shape[:-1], dtype=torch.int64, device=x.device)
        for size, column in zip(x.shape[:depth], places.unbind(-1), strict=True):
            rows = rows * size + _counted_from_start(column, size)
        width = math.prod(x.shape[depth:])
        targets = rows.reshape(-1, 1).expand(-1, width)
        values = updates.reshape(rows.numel(), width)
        table = x.reshape(math.prod(x.shape[:depth]), width)
        return _write(table, 0, targets, values, reduction).reshape(x.shape)

    return bind(problem, scatter)


def _check_reduction(problem: Problem) -> str | None:
    is_plain = problem.attribute("reduction", "none") == "none"
    return None if is_plain or problem.dtype() != "bool" else "reduces booleans"


_CHECK_SCATTER = both(takes(MOVED, INDICES, MOVED), _check_reduction)

INDEXING: dict[str, Rule] = {
    "Slice": Rule(plain(_slice, 1, 2, 3, 4), takes(MOVED, INDICES), since=10),
    "Gather": Rule(_load_gather, takes(MOVED, INDICES)),
    "GatherElements": Rule(_load_gather_elements, takes(MOVED, INDICES)),
    "GatherND": Rule(_load_gather_nd, takes(MOVED, {"int64"}), since=11),
    "Compress": Rule(_load_compress, takes(MOVED, BOOLEAN)),
    "NonZero": Rule(plain(_nonzero), takes(MOVED)),
    "Trilu": Rule(_load_trilu, takes(MOVED, {"int64"})),
    "ReverseSequence": Rule(_load_reverse_sequence, takes(MOVED, {"int64"})),
    "ScatterElements": Rule(_load_scatter_elements, _CHECK_SCATTER),
    "ScatterND": Rule(_load_scatter_nd, _CHECK_SCATTER),
}
