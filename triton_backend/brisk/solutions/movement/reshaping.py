"""The same elements in another shape or order, mostly as views; and the shapes themselves.

Shapes are computed on the CPU: a tensor of sizes is an int64 CPU tensor of a few elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from brisk.solutions.base import Kernel, Problem
from brisk.solutions.rules import (
    INDICES,
    MOVED,
    STORED,
    Rule,
    attribute,
    bind,
    both,
    constant,
    is_dynamic,
    rank,
    takes,
)


def _reshape(x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """0 keeps the size at its place."""
    if 0 in sizes:
        sizes = [x.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
        if 0 in sizes and -1 in sizes:  # nothing to infer a size from but the sizes themselves
            known = math.prod(size for size in sizes if size != -1)
            if known == 0:
                return x.reshape([0 if size == -1 else size for size in sizes])
    return x.reshape(sizes)


def _load_reshape(problem: Problem) -> Kernel:
    sizes = constant(problem, 1)
    if attribute(problem, "allowzero", 0) or (sizes is not None and 0 not in sizes):
        return bind(problem, torch.reshape, numbers={1})
    return bind(problem, _reshape, numbers={1})


def _flatten(x: torch.Tensor, axis: int) -> torch.Tensor:
    rows = math.prod(x.shape[:axis])
    return x.reshape(rows, math.prod(x.shape[axis:]))


def _load_flatten(problem: Problem) -> Kernel:
    axis = attribute(problem, "axis", 1)
    if axis == 1 and (rank(problem) or 0) >= 2:
        return bind(problem, lambda x: x.flatten(1))
    return bind(problem, lambda x: _flatten(x, axis))


def _squeeze(x: torch.Tensor, axes: Sequence[int] | None = None) -> torch.Tensor:
    return x.squeeze() if axes is None else x.squeeze(tuple(axes))


def _unsqueeze(x: torch.Tensor, axes: Sequence[int] | int) -> torch.Tensor:
    """Axes count in the result's rank."""
    if isinstance(axes, int):
        return x.unsqueeze(axes)
    if len(axes) == 1:
        return x.unsqueeze(axes[0])
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _load_unsqueeze(problem: Problem) -> Kernel:
    axes = constant(problem, 1)
    if isinstance(axes, list) and len(axes) == 1 and is_dynamic(problem, 0):
        axis = axes[0]
        return lambda x: (x.unsqueeze(axis),)
    return bind(problem, _unsqueeze, numbers={1})


def _load_transpose(problem: Problem) -> Kernel:
    order = problem.attributes.get("perm")
    if order is None:
        return bind(problem, lambda x: x.permute(*range(x.dim() - 1, -1, -1)))
    axes = tuple(order)  # type: ignore[arg-type]
    return bind(problem, lambda x: x.permute(*axes))


def _expand(x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Broadcasts both ways: a size of 1 in ``sizes`` keeps the tensor's."""
    new = len(sizes) - x.dim()
    if new < 0:
        sizes = (*(1,) * -new, *sizes)
        new = 0
    return x.expand([-1 if size == 1 and i >= new else size for i, size in enumerate(sizes)])


def _tile(x: torch.Tensor, repeats: Sequence[int]) -> torch.Tensor:
    return x.repeat(*repeats) if repeats else x


def _load_depth_to_space(problem: Problem) -> Kernel:
    block = attribute(problem, "blocksize", 1)
    if attribute(problem, "mode", "DCR") == "CRD":
        return bind(problem, lambda x: torch.pixel_shuffle(x, block))

    def depth_to_space(x: torch.Tensor) -> torch.Tensor:
        n, c, h, w = x.shape
        blocks = x.reshape(n, block, block, c // (block * block), h, w)
        return blocks.permute(0, 3, 4, 1, 5, 2).reshape(n, -1, h * block, w * block)

    return bind(problem, depth_to_space)


def _load_space_to_depth(problem: Problem) -> Kernel:
    block = attribute(problem, "blocksize", 1)
    if attribute(problem, "mode", "DCR") == "CRD":
        return bind(problem, lambda x: torch.pixel_unshuffle(x, block))

    def space_to_depth(x: torch.Tensor) -> torch.Tensor:
        n, c, h, w = x.shape
        blocks = x.reshape(n, c, h // block, block, w // block, block)
        return blocks.permute(0, 3, 5, 1, 2, 4).reshape(n, -1, h // block, w // block)

    return bind(problem, space_to_depth)


def _load_shape(problem: Problem) -> Kernel:
    start = attribute(problem, "start", 0)
    end = attribute(problem, "end", None)

    operand = problem.operands[0]
    if operand is None or operand.type.dtype not in STORED:  # strings and such, as arrays
        return bind(problem, lambda x: torch.tensor(x.shape[start:end], dtype=torch.int64))
    if start == 0 and end is None:
        return bind(problem, torch._shape_as_tensor)
    return bind(problem, lambda x: torch._shape_as_tensor(x)[start:end])


def _load_size(problem: Problem) -> Kernel:
    return bind(problem, lambda x: torch.scalar_tensor(math.prod(x.shape), dtype=torch.int64))


def _check_shaped(problem: Problem) -> str | None:
    """Whatever has a shape: tensors, and arrays of what torch does not hold."""
    operand = problem.operands[0]
    if operand is None or operand.type.container.value != "tensor":
        return "not a tensor"
    return "of unknown type" if operand.type.dtype is None else None


def _check_positive_axis(problem: Problem) -> str | None:
    """Rank 0 flattens to [1, 1] only at axis 0, which slices of an empty shape give anyway."""
    return None if isinstance(attribute(problem, "axis", 1), int) else "axis is not a number"


RESHAPING: dict[str, Rule] = {
    "Reshape": Rule(_load_reshape, takes(STORED, INDICES), since=5),
    "Flatten": Rule(_load_flatten, both(takes(STORED), _check_positive_axis)),
    "Squeeze": Rule(
        lambda problem: bind(problem, _squeeze, numbers={1}), takes(STORED, INDICES), since=13
    ),
    "Unsqueeze": Rule(_load_unsqueeze, takes(STORED, INDICES), since=13),
    "Transpose": Rule(_load_transpose, takes(STORED)),
    "Expand": Rule(lambda problem: bind(problem, _expand, numbers={1}), takes(STORED, INDICES)),
    "Tile": Rule(
        lambda problem: bind(problem, _tile, numbers={1}), takes(MOVED, INDICES), since=6
    ),
    "DepthToSpace": Rule(_load_depth_to_space, takes(MOVED)),
    "SpaceToDepth": Rule(_load_space_to_depth, takes(MOVED)),
    "Shape": Rule(_load_shape, _check_shaped),
    "Size": Rule(_load_size, _check_shaped),
}
