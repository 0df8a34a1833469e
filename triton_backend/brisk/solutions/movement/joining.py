"""Tensors put together, taken apart, and padded; sequences (lists) and optional values (None).

Functions take ONNX's attributes under their names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from brisk.solutions.base import Kernel, Problem
from brisk.solutions.rules import (
    INDICES,
    MOVED,
    Check,
    Rule,
    anything,
    bind,
    calls,
    refuse_operand,
    several,
    single,
    takes,
)
from brisk.solutions.values import Value


def _load_split(problem: Problem) -> Kernel:
    axis, count = problem.attribute("axis", 0), len(problem.node.outputs)

    def split(x: Tensor, sizes: list[int] | None = None) -> Any:
        """Without sizes into equal pieces, the last one smaller where they do not fit."""
        if sizes is None:
            piece = -(-x.shape[axis] // count)
            sizes = [piece] * (count - 1) + [x.shape[axis] - piece * (count - 1)]
        return torch.split(x, sizes, axis)

    return bind(problem, split, numbers={1})


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


def _pad(
    x: Tensor,
    pads: Sequence[int],
    value: Any = None,
    axes: Sequence[int] | None = None,
    *,
    mode: str,
) -> Tensor:
    axes = range(x.dim()) if axes is None else axes
    sides = [0] * (2 * x.dim())  # torch wants the last axis first; negative pads are as ONNX's
    for i, axis in enumerate(axes):
        before, after = pads[i], pads[i + len(axes)]
        if mode == "constant":
            place = 2 * (x.dim() - 1 - axis % x.dim())
            sides[place], sides[place + 1] = before, after
        elif before or after:
            picked = torch.from_numpy(_PLACES[mode](x.shape[axis], before, after))
            x = x.index_select(axis, picked.to(x.device))
    return functional.pad(x, sides, value=single(value) or 0) if mode == "constant" else x


Items = Sequence[Any]


def _insert(items: Items, item: Any, position: Any = None) -> list[Any]:
    place = len(items) if position is None else _place(position, len(items) + 1)
    return [*items[:place], item, *items[place:]]


def _erase(items: Items, position: Any = None) -> list[Any]:
    place = _place(-1 if position is None else position, len(items))
    return [*items[:place], *items[place + 1 :]]


def _at(items: Items, position: Any) -> Value:
    return items[_place(position, len(items))]


def _place(position: Any, count: int) -> int:
    position = single(position)
    if not -count <= position < count:
        raise IndexError(f"position {position} in a sequence with {count} places")
    return position % count


def _join(items: Any, axis: int, new_axis: int) -> Tensor:
    return torch.stack(items, axis) if new_axis else torch.cat(items, axis)


def _split_to_sequence(x: Tensor, sizes: Any = None, *, axis: int, keepdims: int) -> Value:
    if sizes is None:
        return list(torch.split(x, 1, axis) if keepdims else x.unbind(axis))
    return list(torch.split(x, sizes, axis))


def _index_at(position: int) -> Check:
    """The operand at ``position``, if any, is an index; the others may be anything."""

    def check(problem: Problem) -> str | None:
        operand = problem.operand(position)
        return None if operand is None else refuse_operand(operand, INDICES)

    return check


def _check_join(problem: Problem) -> str | None:
    return None if problem.dtype() in MOVED else "elements that torch does not move"


def _get_element(value: Value) -> Value:
    if value is None:
        raise ValueError("the optional value is absent")
    return value


JOINING: dict[str, Rule] = {
    "Concat": Rule(calls(lambda *values, axis: torch.cat(values, axis), axis=0), takes(MOVED)),
    "Split": Rule(several(_load_split), takes(MOVED, INDICES)),
    "Pad": Rule(calls(_pad, 1, 2, 3, mode="constant"), takes(MOVED, {"int64"}, MOVED, INDICES)),
    "SequenceConstruct": Rule(calls(lambda *items: list(items)), anything),
    "SequenceEmpty": Rule(calls(list), anything),
    "SequenceInsert": Rule(calls(_insert, 2), _index_at(2)),
    "SequenceErase": Rule(calls(_erase, 1), _index_at(1)),
    "SequenceAt": Rule(calls(_at, 1), _index_at(1)),
    "SequenceLength": Rule(calls(lambda items: torch.tensor(len(items))), anything),
    "ConcatFromSequence": Rule(calls(_join, axis=0, new_axis=0), _check_join),
    "SplitToSequence": Rule(
        calls(_split_to_sequence, 1, axis=0, keepdims=1), takes(MOVED, INDICES)
    ),
    "Optional": Rule(calls(lambda value=None: value), anything),
    "OptionalHasElement": Rule(
        calls(lambda value=None: torch.tensor(value is not None)), anything
    ),
    "OptionalGetElement": Rule(calls(_get_element), anything),
}
