"""Sequences and optional values: Python lists and None."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from brisk.solutions.base import Kernel, Problem, Value
from brisk.solutions.rules import INDICES, MOVED, Rule, attribute, bind, refuse_operand, single

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


def _count(items: Items) -> torch.Tensor:
    return torch.tensor(len(items), dtype=torch.int64)


def _load_join(problem: Problem) -> Kernel:
    axis = attribute(problem, "axis", 0)
    join = torch.stack if attribute(problem, "new_axis", 0) else torch.cat
    return bind(problem, lambda items: join(items, axis))


def _load_split(problem: Problem) -> Kernel:
    axis, keep = attribute(problem, "axis", 0), attribute(problem, "keepdims", 1)

    def split(x: torch.Tensor, sizes: Any = None) -> Value:
        if sizes is None:
            pieces = torch.split(x, 1, axis)
            return list(pieces) if keep else [piece.squeeze(axis) for piece in pieces]
        return list(torch.split(x, sizes, axis))

    return bind(problem, split, numbers={1})


def _loader(function: Callable[..., Value], *numbers: int) -> Callable[[Problem], Kernel]:
    return lambda problem: bind(problem, function, numbers)


def _check(**positions: frozenset[str]) -> Callable[[Problem], str | None]:
    """``p1=...``: the operand at position 1 is a tensor of one of these dtypes."""

    def check(problem: Problem) -> str | None:
        for position, dtypes in positions.items():
            operand = problem.operand(int(position[1:]))
            reason = operand and refuse_operand(operand, dtypes)
            if reason:
                return reason
        return None

    return check


def _check_join(problem: Problem) -> str | None:
    operand = problem.operands[0]
    if operand is None or operand.type.dtype not in MOVED:
        return "elements that torch does not move"
    return None


def _has_element(value: Value = None) -> torch.Tensor:
    return torch.tensor(value is not None)


def _get_element(value: Value) -> Value:
    if value is None:
        raise ValueError("the optional value is absent")
    return value


SEQUENCES: dict[str, Rule] = {
    "SequenceConstruct": Rule(_loader(lambda *items: list(items)), _check()),
    "SequenceEmpty": Rule(_loader(list), _check()),
    "SequenceInsert": Rule(_loader(_insert, 2), _check(p2=INDICES)),
    "SequenceErase": Rule(_loader(_erase, 1), _check(p1=INDICES)),
    "SequenceAt": Rule(_loader(_at, 1), _check(p1=INDICES)),
    "SequenceLength": Rule(_loader(_count), _check()),
    "ConcatFromSequence": Rule(_load_join, _check_join),
    "SplitToSequence": Rule(_load_split, _check(p0=MOVED, p1=INDICES)),
    "Optional": Rule(
        lambda problem: bind(problem, lambda value=None: value),
        _check(),
    ),
    "OptionalHasElement": Rule(_loader(_has_element), _check()),
    "OptionalGetElement": Rule(_loader(_get_element), _check()),
}
