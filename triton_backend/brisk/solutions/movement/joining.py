"""Tensors put together, taken apart, and padded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from brisk.solutions.base import Kernel, Problem, Value
from brisk.solutions.rules import (
    INDICES,
    MOVED,
    Rule,
    attribute,
    bind,
    constant,
    is_dynamic,
    single,
    takes,
)


def _load_concatenate(problem: Problem) -> Kernel:
    axis = attribute(problem, "axis", 0)
    if all(is_dynamic(problem, position) for position in range(len(problem.operands))):
        return lambda *values: (torch.cat(values, axis),)
    return bind(problem, lambda *values: torch.cat(values, axis))


def _load_split(problem: Problem) -> Kernel:
    axis = attribute(problem, "axis", 0)
    sizes = constant(problem, 1)
    count = len(problem.layer.main.outputs)
    if sizes is not None:
        return lambda x: torch.split(x, sizes, axis)
    if is_dynamic(problem, 1):
        return lambda x, sizes: torch.split(x, sizes.tolist(), axis)

    def split_evenly(x: torch.Tensor) -> Sequence[Value]:
        """Pieces of equal size, the last one smaller where they do not fit."""
        size = x.shape[axis]
        piece = -(-size // count)
        return torch.split(x, [piece] * (count - 1) + [size - piece * (count - 1)], axis)

    return split_evenly


def _check_split(problem: Problem) -> str | None:
    if not is_dynamic(problem, 0):
        return "splits a constant"
    return takes(MOVED, INDICES)(problem)


Places = Callable[[int, int, int], np.ndarray]


def _reflected(size: int, before: int, after: int) -> np.ndarray:
    places = np.abs(np.arange(-before, size + after))
    period = max(2 * (size - 1), 1)
    places = places % period
    return np.where(places >= size, period - places, places)


_PLACES: dict[str, Places] = {
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


def _pad_by_places(
    x: torch.Tensor, pads: Sequence[int], places: Places, axes: Sequence[int]
) -> torch.Tensor:
    for i, axis in enumerate(axes):
        before, after = pads[i], pads[i + len(axes)]
        if before or after:
            picked = torch.from_numpy(places(x.shape[axis], before, after))
            x = x.index_select(axis, picked.to(x.device))
    return x


def _is_row_padding(problem: Problem) -> bool:
    """Floats of rank 2 or 3, padded at the last axis only: torch has a kernel for that."""
    data, pads = problem.operands[0], constant(problem, 1)
    dims = len(pads) // 2
    rows = any(pads) and not any(pads[: dims - 1]) and not any(pads[dims:-1])
    floats = data is not None and data.type.dtype in ("float32", "float64")
    return dims in (2, 3) and rows and floats and min(pads) >= 0


def _load_pad(problem: Problem) -> Kernel:
    mode = attribute(problem, "mode", "constant")
    if mode == "constant":
        return bind(problem, _pad_constant, numbers={1, 2, 3})
    places = _PLACES[mode]
    pads = constant(problem, 1)
    if mode == "reflect" and pads and problem.operand(3) is None and _is_row_padding(problem):
        dims = len(pads) // 2
        before, after = pads[dims - 1], pads[-1]

        def reflect_rows(x: torch.Tensor) -> torch.Tensor:
            if max(before, after) < x.shape[-1]:
                return functional.pad(x, (before, after), mode="reflect")
            return _pad_by_places(x, pads, places, range(dims))

        return bind(problem, lambda x, *_: reflect_rows(x))

    def pad(
        x: torch.Tensor, pads: Sequence[int], _: Any = None, axes: Sequence[int] | None = None
    ) -> torch.Tensor:
        return _pad_by_places(x, pads, places, range(x.dim()) if axes is None else axes)

    return bind(problem, pad, numbers={1, 2, 3})


JOINING: dict[str, Rule] = {
    "Concat": Rule(_load_concatenate, takes(MOVED), since=4),
    "Split": Rule(_load_split, _check_split, since=13),
    "Pad": Rule(_load_pad, takes(MOVED, {"int64"}, MOVED, INDICES), since=11),
}
