"""Elements picked by position or condition."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from brisk.solutions.base import Kernel, Problem
from brisk.solutions.rules import (
    BOOLEAN,
    INDICES,
    MOVED,
    Rule,
    attribute,
    bind,
    constant,
    is_dynamic,
    rank,
    single,
    takes,
)


def _slice(
    x: torch.Tensor,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> torch.Tensor:
    for i, axis in enumerate(range(len(starts)) if axes is None else axes):
        step = 1 if steps is None else steps[i]
        picked = slice(starts[i], ends[i], step)
        if step > 0:
            first, last, _ = picked.indices(x.shape[axis])
            x = torch.ops.aten.slice.Tensor(x, axis, first, last, step)
        else:
            places = range(*picked.indices(x.shape[axis]))
            x = x.index_select(axis, torch.tensor(places, dtype=torch.int64, device=x.device))
    return x


def _load_slice(problem: Problem) -> Kernel:
    starts, ends, axes, steps = (constant(problem, position) for position in range(1, 5))
    fixed = not any(is_dynamic(problem, position) for position in range(1, 5))
    if fixed and is_dynamic(problem, 0) and len(starts) == 1 and (steps or [1])[0] > 0:
        axis, picked = (axes or [0])[0], slice(starts[0], ends[0], (steps or [1])[0])
        axis += (rank(problem) or 0) if axis < 0 else 0
        if axis >= 0:  # torch clips to the size as ONNX does
            index = (slice(None),) * axis + (picked,)
            return lambda x: (x[index],)
    return bind(problem, _slice, numbers={1, 2, 3, 4})


def _load_gather(problem: Problem) -> Kernel:
    axis = attribute(problem, "axis", 0)
    indices = problem.operands[1]
    if indices is not None and indices.constant is not None:
        place = indices.constant.tolist()
        if isinstance(place, int):
            return bind(problem, lambda x, place: x.select(axis, place), numbers={1})
        if len(place) == 1 and indices.constant.ndim == 1:
            first = place[0]
            return bind(problem, lambda x, _: x.narrow(axis, first, 1))
        if indices.constant.ndim == 1 and indices.constant.size and min(place) >= 0:
            return bind(problem, lambda x, places: x.index_select(axis, places))

    def gather(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        at = axis % x.dim()
        places = torch.where(places < 0, places + x.shape[at], places)
        if places.dim() == 1:
            return x.index_select(at, places)
        picked = x.index_select(at, places.reshape(-1))
        return picked.reshape(x.shape[:at] + places.shape + x.shape[at + 1 :])

    data = problem.operands[0]
    is_table = data is not None and data.constant is not None and data.constant.ndim == 2
    if axis == 0 and is_table and problem.device.type == "cpu":

        def look_up(table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
            try:
                return torch.embedding(table, places)
            except IndexError:  # a place below zero counts from the end, or is too far
                return gather(table, places)

        return bind(problem, look_up)
    return bind(problem, gather)


def _load_gather_elements(problem: Problem) -> Kernel:
    axis = attribute(problem, "axis", 0)

    def gather(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        places = torch.where(places < 0, places + x.shape[axis], places)
        return torch.gather(x, axis, places.long())

    return bind(problem, gather)


def _load_gather_nd(problem: Problem) -> Kernel:
    batch = attribute(problem, "batch_dims", 0)

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
    axis = attribute(problem, "axis", None)

    def compress(x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        places = condition.nonzero().squeeze(1)
        if axis is None:
            return x.reshape(-1).index_select(0, places)
        return x.index_select(axis, places)

    return bind(problem, compress)


def _load_trilu(problem: Problem) -> Kernel:
    function = torch.triu if attribute(problem, "upper", 1) else torch.tril
    return bind(problem, lambda x, k=None: function(x, single(k) or 0), numbers={1})


def _nonzero(x: torch.Tensor) -> torch.Tensor:
    return x.nonzero().t()


def _load_reverse_sequence(problem: Problem) -> Kernel:
    batch, time = attribute(problem, "batch_axis", 1), attribute(problem, "time_axis", 0)

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


INDEXING: dict[str, Rule] = {
    "Slice": Rule(_load_slice, takes(MOVED, INDICES), since=10),
    "Gather": Rule(_load_gather, takes(MOVED, INDICES)),
    "GatherElements": Rule(_load_gather_elements, takes(MOVED, INDICES)),
    "GatherND": Rule(_load_gather_nd, takes(MOVED, {"int64"}), since=11),
    "Compress": Rule(_load_compress, takes(MOVED, BOOLEAN)),
    "NonZero": Rule(lambda problem: bind(problem, _nonzero), takes(MOVED)),
    "Trilu": Rule(_load_trilu, takes(MOVED, {"int64"})),
    "ReverseSequence": Rule(_load_reverse_sequence, takes(MOVED, {"int64"})),
}
