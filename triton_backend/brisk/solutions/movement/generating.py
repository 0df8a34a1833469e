"""Tensors made from sizes and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from brisk.solutions.base import Kernel, Problem
from brisk.solutions.rules import (
    MOVED,
    NUMBERS,
    Rule,
    attribute,
    bind,
    single,
    takes,
)
from brisk.solutions.values import TORCH_DTYPES, from_numpy


def _load_range(problem: Problem) -> Kernel:
    device = problem.device
    first = problem.operands[0]
    dtype = TORCH_DTYPES[first.type.dtype or ""] if first is not None else torch.int64

    def count_up(start: Any, limit: Any, delta: Any) -> torch.Tensor:
        start, limit, delta = single(start), single(limit), single(delta)
        count = max(math.ceil((limit - start) / delta), 0)
        if dtype.is_floating_point:
            return start + torch.arange(count, dtype=dtype, device=device) * delta
        return torch.arange(start, start + count * delta, delta, dtype=dtype, device=device)

    return bind(problem, count_up, numbers={0, 1, 2})


def _load_constant_of_shape(problem: Problem) -> Kernel:
    device = problem.device
    value = attribute(problem, "value", np.zeros(1, np.float32))
    filler = from_numpy(value.reshape(()), device)
    assert isinstance(filler, torch.Tensor)
    number, dtype = filler.item(), filler.dtype

    def fill(sizes: Sequence[int]) -> torch.Tensor:
        return torch.full(sizes, number, dtype=dtype, device=device)

    return bind(problem, fill, numbers={0})


def _check_constant_of_shape(problem: Problem) -> str | None:
    value = attribute(problem, "value", np.zeros(1, np.float32))
    if value.dtype.name not in MOVED:
        return f"fills with {value.dtype.name}"
    return takes({"int64"})(problem)


def _load_one_hot(problem: Problem) -> Kernel:
    axis = attribute(problem, "axis", -1)

    def one_hot(places: torch.Tensor, depth: Any, values: torch.Tensor) -> torch.Tensor:
        """Places outside [-depth, depth) are off everywhere."""
        size = int(single(depth))
        off, on = values.unbind()
        at = axis % (places.dim() + 1)
        places = torch.where(places < 0, places + size, places).unsqueeze(at)
        classes = torch.arange(size, device=places.device)
        shape = [size if i == at else 1 for i in range(places.dim())]
        return torch.where(places == classes.reshape(shape), on, off)

    return bind(problem, one_hot, numbers={1})


def _load_eye_like(problem: Problem) -> Kernel:
    offset = attribute(problem, "k", 0)
    number = attribute(problem, "dtype", None)
    dtype = None if number is None else TORCH_DTYPES[_EYE_DTYPES[number]]

    def eye(x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape
        down = torch.arange(rows, device=x.device).unsqueeze(1)
        across = torch.arange(columns, device=x.device)
        return (across - down == offset).to(dtype or x.dtype)

    return bind(problem, eye)


_EYE_DTYPES = {1: "float32", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "float64"}


def _check_eye_like(problem: Problem) -> str | None:
    number = attribute(problem, "dtype", None)
    if number is not None and number not in _EYE_DTYPES:
        return f"element type {number}"
    return takes(MOVED)(problem)


GENERATING: dict[str, Rule] = {
    "Range": Rule(_load_range, takes(NUMBERS)),
    "ConstantOfShape": Rule(_load_constant_of_shape, _check_constant_of_shape),
    "OneHot": Rule(_load_one_hot, takes(NUMBERS, NUMBERS, MOVED), since=9),
    "EyeLike": Rule(_load_eye_like, _check_eye_like),
}
