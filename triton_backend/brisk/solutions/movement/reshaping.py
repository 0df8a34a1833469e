"""The same elements in another shape, the shapes themselves, and tensors made of sizes.

Shapes are computed on the CPU: a tensor of sizes is an int64 CPU tensor of a few elements.
Functions take ONNX's attributes under their names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from brisk.graph.files.element_types import name_of_element
from brisk.graph.program import ContainerKind
from brisk.solutions.base import Kernel, Problem
from brisk.solutions.rules import (
    INDICES,
    MOVED,
    NUMBERS,
    STORED,
    Load,
    Rule,
    bind,
    calls,
    single,
    takes,
)
from brisk.solutions.values import TORCH_DTYPES, from_numpy


def _reshape(x: Tensor, sizes: Sequence[int], allowzero: int) -> Tensor:
    """0 keeps the size at its place."""
    if 0 in sizes and not allowzero:
        sizes = [x.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
        if 0 in sizes:  # nothing to infer a size from but the sizes themselves
            sizes = [0 if size == -1 else size for size in sizes]
    return x.reshape(sizes)


def _flatten(x: Tensor, axis: int) -> Tensor:
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def _squeeze(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    return x.squeeze() if axes is None else x.squeeze(tuple(axes))


def _unsqueeze(x: Tensor, axes: Sequence[int] | int) -> Tensor:
    """Axes count in the result's rank."""
    if isinstance(axes, int):
        return x.unsqueeze(axes)
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _transpose(x: Tensor, perm: tuple[int, ...] | None) -> Tensor:
    return x.permute(tuple(range(x.dim()))[::-1] if perm is None else perm)


def _expand(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Broadcasts both ways: a size of 1 in ``sizes`` keeps the tensor's."""
    return x.expand(torch.broadcast_shapes(x.shape, sizes))  # type: ignore[no-untyped-call]


def _tile(x: Tensor, repeats: Sequence[int]) -> Tensor:
    return x.repeat(*repeats) if repeats else x


def _depth_to_space(x: Tensor, blocksize: int, mode: str) -> Tensor:
    if mode == "CRD":
        return torch.pixel_shuffle(x, blocksize)
    n, c, h, w = x.shape
    blocks = x.reshape(n, blocksize, blocksize, c // blocksize**2, h, w)
    return blocks.permute(0, 3, 4, 1, 5, 2).reshape(n, -1, h * blocksize, w * blocksize)


def _space_to_depth(x: Tensor, blocksize: int, mode: str) -> Tensor:
    if mode == "CRD":
        return torch.pixel_unshuffle(x, blocksize)
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // blocksize, blocksize, w // blocksize, blocksize)
    return blocks.permute(0, 3, 5, 1, 2, 4).reshape(n, -1, h // blocksize, w // blocksize)


def _shape(x: Tensor, start: int, end: int | None) -> Tensor:
    return torch.tensor(x.shape[start:end], dtype=torch.int64)


def _check_shaped(problem: Problem) -> str | None:
    """Whatever has a shape: tensors, and arrays of what torch does not hold."""
    operand = problem.operands[0]
    if operand is None or operand.type.container is not ContainerKind.TENSOR:
        return "not a tensor"
    return "of unknown type" if operand.type.dtype is None else None


def _load_range(problem: Problem) -> Kernel:
    device, dtype = problem.device, TORCH_DTYPES[problem.dtype() or "int64"]

    def count_up(start: Any, limit: Any, delta: Any) -> Tensor:
        start, limit, delta = single(start), single(limit), single(delta)
        count = max(math.ceil((limit - start) / delta), 0)
        return start + torch.arange(count, dtype=dtype, device=device) * delta

    return bind(problem, count_up, numbers={0, 1, 2})


def _load_constant_of_shape(problem: Problem) -> Kernel:
    value = problem.attribute("value", np.zeros(1, np.float32))
    filler: Any = from_numpy(value.reshape(()), problem.device)
    return bind(problem, lambda sizes: filler.expand(sizes).clone(), numbers={0})


def _check_constant_of_shape(problem: Problem) -> str | None:
    value = problem.attribute("value", np.zeros(1, np.float32))
    if value.dtype.name not in MOVED:
        return f"fills with {value.dtype.name}"
    return takes({"int64"})(problem)


def _one_hot(places: Tensor, depth: Any, values: Tensor, axis: int) -> Tensor:
    """Places outside [-depth, depth) are off everywhere."""
    size = int(single(depth))
    off, on = values.unbind()
    places = torch.where(places < 0, places + size, places).unsqueeze(-1)
    hot = torch.where(places == torch.arange(size, device=places.device), on, off)
    return hot.movedim(-1, axis)


def _eye(x: Tensor, k: int, dtype: int | None) -> Tensor:
    rows, columns = (torch.arange(size, device=x.device) for size in x.shape)
    made = x.dtype if dtype is None else TORCH_DTYPES[name_of_element(dtype) or ""]
    return (columns - rows.unsqueeze(1) == k).to(made)


def _check_eye_like(problem: Problem) -> str | None:
    number = problem.attribute("dtype", None)
    if number is not None and name_of_element(number) not in MOVED:
        return f"element type {number}"
    return takes(MOVED)(problem)


def _viewing(load: Load) -> Rule:
    return Rule(load, takes(STORED, INDICES))


RESHAPING: dict[str, Rule] = {
    "Reshape": _viewing(calls(_reshape, 1, allowzero=0)),
    "Flatten": _viewing(calls(_flatten, axis=1)),
    "Squeeze": _viewing(calls(_squeeze, 1)),
    "Unsqueeze": _viewing(calls(_unsqueeze, 1)),
    "Transpose": _viewing(calls(_transpose, perm=None)),
    "Expand": _viewing(calls(_expand, 1)),
    "Tile": Rule(calls(_tile, 1), takes(MOVED, INDICES)),
    "DepthToSpace": Rule(calls(_depth_to_space, blocksize=1, mode="DCR"), takes(MOVED)),
    "SpaceToDepth": Rule(calls(_space_to_depth, blocksize=1, mode="DCR"), takes(MOVED)),
    "Shape": Rule(calls(_shape, start=0, end=None), _check_shaped),
    "Size": Rule(calls(lambda x: torch.tensor(math.prod(x.shape))), _check_shaped),
    "Range": Rule(_load_range, takes(NUMBERS)),
    "ConstantOfShape": Rule(_load_constant_of_shape, _check_constant_of_shape),
    "OneHot": Rule(calls(_one_hot, 1, axis=-1), takes(NUMBERS, NUMBERS, MOVED)),
    "EyeLike": Rule(calls(_eye, k=0, dtype=None), _check_eye_like),
}
