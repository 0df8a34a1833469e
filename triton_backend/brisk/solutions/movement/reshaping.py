"""The same elements in another shape, the shapes themselves, and tensors made of sizes.

Shapes are computed on the CPU: a tensor of sizes is an int64 CPU tensor of a few elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from brisk.graph.program import ContainerKind
from brisk.solutions.base import Kernel, Problem
from brisk.solutions.rules import INDICES, MOVED, NUMBERS, STORED, Rule, bind, plain, single, takes
from brisk.solutions.values import TORCH_DTYPES, from_numpy


def _reshape(x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """0 keeps the size at its place."""
    if 0 in sizes:
        sizes = [x.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
        if 0 in sizes:  # nothing to infer a size from but the sizes themselves
            sizes = [0 if size == -1 else size for size in sizes]
    return x.reshape(sizes)


def _load_reshape(problem: Problem) -> Kernel:
    function = torch.reshape if problem.attribute("allowzero", 0) else _reshape
    return bind(problem, function, numbers={1})


def _load_flatten(problem: Problem) -> Kernel:
    axis = problem.attribute("axis", 1)

    def flatten(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))

    return bind(problem, flatten)


def _squeeze(x: torch.Tensor, axes: Sequence[int] | None = None) -> torch.Tensor:
    return x.squeeze() if axes is None else x.squeeze(tuple(axes))


def _unsqueeze(x: torch.Tensor, axes: Sequence[int] | int) -> torch.Tensor:
    """Axes count in the result's rank."""
    if isinstance(axes, int):
        return x.unsqueeze(axes)
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _load_transpose(problem: Problem) -> Kernel:
    order = problem.attribute("perm", None)
    if order is None:
        return bind(problem, lambda x: x.permute(*range(x.dim() - 1, -1, -1)))
    return bind(problem, lambda x: x.permute(order))


def _expand(x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Broadcasts both ways: a size of 1 in ``sizes`` keeps the tensor's."""
    return x.expand(torch.broadcast_shapes(x.shape, sizes))  # type: ignore[no-untyped-call]


def _tile(x: torch.Tensor, repeats: Sequence[int]) -> torch.Tensor:
    return x.repeat(*repeats) if repeats else x


def _load_depth_to_space(problem: Problem) -> Kernel:
    block = problem.attribute("blocksize", 1)
    if problem.attribute("mode", "DCR") == "CRD":
        return bind(problem, lambda x: torch.pixel_shuffle(x, block))

    def depth_to_space(x: torch.Tensor) -> torch.Tensor:
        n, c, h, w = x.shape
        blocks = x.reshape(n, block, block, c // (block * block), h, w)
        return blocks.permute(0, 3, 4, 1, 5, 2).reshape(n, -1, h * block, w * block)

    return bind(problem, depth_to_space)


def _load_space_to_depth(problem: Problem) -> Kernel:
    block = problem.attribute("blocksize", 1)
    if problem.attribute("mode", "DCR") == "CRD":
        return bind(problem, lambda x: torch.pixel_unshuffle(x, block))

    def space_to_depth(x: torch.Tensor) -> torch.Tensor:
        n, c, h, w = x.shape
        blocks = x.reshape(n, c, h // block, block, w // block, block)
        return blocks.permute(0, 3, 5, 1, 2, 4).reshape(n, -1, h // block, w // block)

    return bind(problem, space_to_depth)


def _load_shape(problem: Problem) -> Kernel:
    start, end = problem.attribute("start", 0), problem.attribute("end", None)
    return bind(problem, lambda x: torch.tensor(x.shape[start:end], dtype=torch.int64))


def _size(x: Any) -> torch.Tensor:
    return torch.tensor(math.prod(x.shape))


def _check_shaped(problem: Problem) -> str | None:
    """Whatever has a shape: tensors, and arrays of what torch does not hold."""
    operand = problem.operands[0]
    if operand is None or operand.type.container is not ContainerKind.TENSOR:
        return "not a tensor"
    return "of unknown type" if operand.type.dtype is None else None


def _load_range(problem: Problem) -> Kernel:
    device, dtype = problem.device, TORCH_DTYPES[problem.dtype() or "int64"]

    def count_up(start: Any, limit: Any, delta: Any) -> torch.Tensor:
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


def _load_one_hot(problem: Problem) -> Kernel:
    axis = problem.attribute("axis", -1)

    def one_hot(places: torch.Tensor, depth: Any, values: torch.Tensor) -> torch.Tensor:
        """Places outside [-depth, depth) are off everywhere."""
        size = int(single(depth))
        off, on = values.unbind()
        places = torch.where(places < 0, places + size, places).unsqueeze(-1)
        hot = torch.where(places == torch.arange(size, device=places.device), on, off)
        return hot.movedim(-1, axis)

    return bind(problem, one_hot, numbers={1})


_EYE_DTYPES = {
    1: torch.float32,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
}


def _load_eye_like(problem: Problem) -> Kernel:
    offset = problem.attribute("k", 0)
    dtype = _EYE_DTYPES.get(problem.attribute("dtype", 0))

    def eye(x: torch.Tensor) -> torch.Tensor:
        rows, columns = (torch.arange(size, device=x.device) for size in x.shape)
        return (columns - rows.unsqueeze(1) == offset).to(dtype or x.dtype)

    return bind(problem, eye)


def _check_eye_like(problem: Problem) -> str | None:
    number = problem.attribute("dtype", None)
    if number is not None and number not in _EYE_DTYPES:
        return f"element type {number}"
    return takes(MOVED)(problem)


def _viewing(load: Callable[[Problem], Kernel], since: int = 1) -> Rule:
    return Rule(load, takes(STORED, INDICES), since)


RESHAPING: dict[str, Rule] = {
    "Reshape": _viewing(_load_reshape, since=5),
    "Flatten": _viewing(_load_flatten),
    "Squeeze": _viewing(plain(_squeeze, 1), since=13),
    "Unsqueeze": _viewing(plain(_unsqueeze, 1), since=13),
    "Transpose": _viewing(_load_transpose),
    "Expand": _viewing(plain(_expand, 1)),
    "Tile": Rule(plain(_tile, 1), takes(MOVED, INDICES), since=6),
    "DepthToSpace": Rule(_load_depth_to_space, takes(MOVED)),
    "SpaceToDepth": Rule(_load_space_to_depth, takes(MOVED)),
    "Shape": Rule(_load_shape, _check_shaped),
    "Size": Rule(plain(_size), _check_shaped),
    "Range": Rule(_load_range, takes(NUMBERS)),
    "ConstantOfShape": Rule(_load_constant_of_shape, _check_constant_of_shape),
    "OneHot": Rule(_load_one_hot, takes(NUMBERS, NUMBERS, MOVED), since=9),
    "EyeLike": Rule(_load_eye_like, _check_eye_like),
}
