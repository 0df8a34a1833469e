"""Tensors put together, taken apart, and padded; sequences (lists) and optional values (None)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from brisk.solutions.base import Kernel, Problem
from brisk.solutions.rules import (
    INDICES,
    MOVED,
    Rule,
    anything,
    bind,
    plain,
    refuse_operand,
    single,
    takes,
)
from brisk.solutions.values import Value


def _load_concatenate(problem: Problem) -> Kernel:
    axis = problem.attribute("axis", 0)
    return bind(problem, lambda *values: torch.cat(values, axis))


def _load_split(problem: Problem) -> Kernel:
    axis, sizes = problem.attribute("axis", 0), problem.constant(1)
    count = len(problem.layer.outputs)
    if sizes is not None:
        return lambda x: torch.split(x, sizes, axis)
    if problem.is_dynamic(1):
        return lambda x, sizes: torch.split(x, sizes.tolist(), axis)

    def split_evenly(x: torch.Tensor) -> Sequence[Value]:
        """Pieces of equal size, the last one smaller where they do not fit."""
        size = x.shape[axis]
        piece = -(-size // count)
        return torch.split(x, [piece] * (count - 1) + [size - piece * (count - 1)], axis)

    return split_evenly


def _check_split(problem: Problem) -> str | None:
    if not problem.is_dynamic(0):
        return "splits a constant"
    return takes(MOVED, INDICES)(problem)


def _reflected(size: int, before: int, after: int) -> np.ndarray:
    places = np.abs(np.arange(-before, size + after))
    period = max(2 * (size - 1), 1)
    places = places % period
    return np.where(places >= size, period - places, places)


_PLACES: dict[str, Callable[[int, int, int], np.ndarray]] = {
    "reflect": _reflected,
    "edge": lambda size, before, after: np.clip(np.arange(-before, size + after), 0, size - 1),
    "wrap": lambda size, before, after: np.arange(-before, size + after) % size,
}
"""By mode: the source position of each padded position along an axis."""


def _pad_constant(
    x: torch.Tensor, pads: Sequence[int], value: Any = None, axes: Sequence[int] | None = None
) -> torch.Tensor:
    """torch wants the last axis first, and takes negative pads as ONNX does."""
    if axes is None:
        axes = range(x.dim())
    sides = [0] * (2 * x.dim())
    for i, axis in enumerate(axes):
        place = 2 * (x.dim() - 1 - axis % x.dim())
        sides[place], sides[place + 1] = pads[i], pads[i + len(axes)]
    return functional.pad(x, sides, value=single(value) or 0)


def _load_pad(problem: Problem) -> Kernel:
    mode = problem.attribute("mode", "constant")
    if mode == "constant":
        return bind(problem, _pad_constant, numbers={1, 2, 3})
    places = _PLACES[mode]

    def pad(
        x: torch.Tensor, pads: Sequence[int], _: Any = None, axes: Sequence[int] | None = None
    ) -> torch.Tensor:
        axes = range(x.dim()) if axes is None else axes
        for i, axis in enumerate(axes):
            before, after = pads[i], pads[i + len(axes)]
            if before or after:
                picked = torch.from_numpy(places(x.shape[axis], before, after))
                x = x.index_select(axis, picked.to(x.device))
        return x

    return bind(problem, pad, numbers={1, 2, 3})


Items = Sequence[Any]


def _insert(items: Items, item: Any, position: Any = None) -> list[Any]:
    made = list(items)
    made.insert(len(made) if position is None else _place(position, len(made) + 1), item)
    return made


def _erase(items: Items, position: Any = None) -> list[Any]:
    made = list(items)
    del made[-1 if position is None else _place(position, len(made))]
    return made


def _at(items: Items, position: Any) -> Value:
    return items[_place(position, len(items))]


def _place(position: Any, count: int) -> int:
    position = single(position)
    if not -count <= position < count:
        raise IndexError(f"position {position} in a sequence with {count} places")
    return position % count


def _load_join(problem: Problem) -> Kernel:
    axis = problem.attribute("axis", 0)
    join = torch.stack if problem.attribute("new_axis", 0) else torch.cat
    return bind(problem, lambda items: join(items, axis))


def _load_split_to_sequence(problem: Problem) -> Kernel:
    axis, keep = problem.attribute("axis", 0), problem.attribute("keepdims", 1)

    def split(x: torch.Tensor, sizes: Any = None) -> Value:
        if sizes is None:
            return list(torch.split(x, 1, axis) if keep else x.unbind(axis))
        return list(torch.split(x, sizes, axis))

    return bind(problem, split, numbers={1})


def _index_at(position: int) -> Callable[[Problem], str | None]:
    """The operand at ``position``, if any, is an index; the others may be anything."""

    def check(problem: Problem) -> str | None:
        operand = problem.operand(position)
        return None if operand is None else refuse_operand(operand, INDICES)

    return check


def _check_join(problem: Problem) -> str | None:
    return None if problem.dtype() in MOVED else "elements that torch does not move"


def _has_element(value: Value = None) -> torch.Tensor:
    return torch.tensor(value is not None)


def _get_element(value: Value) -> Value:
    if value is None:
        raise ValueError("the optional value is absent")
    return value


JOINING: dict[str, Rule] = {
    "Concat": Rule(_load_concatenate, takes(MOVED), since=4),
    "Split": Rule(_load_split, _check_split, since=13),
    "Pad": Rule(_load_pad, takes(MOVED, {"int64"}, MOVED, INDICES), since=11),
    "SequenceConstruct": Rule(plain(lambda *items: list(items)), anything),
    "SequenceEmpty": Rule(plain(list), anything),
    "SequenceInsert": Rule(plain(_insert, 2), _index_at(2)),
    "SequenceErase": Rule(plain(_erase, 1), _index_at(1)),
    "SequenceAt": Rule(plain(_at, 1), _index_at(1)),
    "SequenceLength": Rule(plain(lambda items: torch.tensor(len(items))), anything),
    "ConcatFromSequence": Rule(_load_join, _check_join),
    "SplitToSequence": Rule(_load_split_to_sequence, takes(MOVED, INDICES)),
    "Optional": Rule(plain(lambda value=None: value), anything),
    "OptionalHasElement": Rule(plain(_has_element), anything),
    "OptionalGetElement": Rule(plain(_get_element), anything),
}
