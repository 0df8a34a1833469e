"""Elements written into a copy of a tensor, by position."""

from __future__ import annotations

import math

import torch

from brisk.solutions.base import Kernel, Problem
from brisk.solutions.rules import INDICES, MOVED, Rule, attribute, bind, both, takes

_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _write(
    x: torch.Tensor, axis: int, places: torch.Tensor, updates: torch.Tensor, reduction: str
) -> torch.Tensor:
    if reduction == "none":
        return x.scatter(axis, places, updates)
    return x.scatter_reduce(axis, places, updates, _REDUCTIONS[reduction], include_self=True)


def _load_scatter_elements(problem: Problem) -> Kernel:
    axis = attribute(problem, "axis", 0)
    reduction = attribute(problem, "reduction", "none")

    def scatter(x: torch.Tensor, places: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
        places = torch.where(places < 0, places + x.shape[axis], places).long()
        return _write(x, axis, places, updates, reduction)

    return bind(problem, scatter)


def _load_scatter_nd(problem: Problem) -> Kernel:
    """``places[..., :]`` addresses a block of the leading axes; blocks are rows of a matrix."""
    reduction = attribute(problem, "reduction", "none")

    def scatter(x: torch.Tensor, places: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
        depth = places.shape[-1]
        if reduction == "none":
            index = tuple(column.long() for column in places.unbind(-1))
            return x.index_put(index, updates) if index else updates.reshape(x.shape).clone()
        rows = torch.zeros(places.shape[:-1], dtype=torch.int64, device=x.device)
        for size, column in zip(x.shape[:depth], places.unbind(-1), strict=True):
            rows = rows * size + torch.where(column < 0, column + size, column)
        width = math.prod(x.shape[depth:])
        targets = rows.reshape(-1, 1).expand(-1, width)
        values = updates.reshape(-1, width)
        return _write(x.reshape(-1, width), 0, targets, values, reduction).reshape(x.shape)

    return bind(problem, scatter)


def _check_reduction(problem: Problem) -> str | None:
    operand = problem.operands[0]
    plain = attribute(problem, "reduction", "none") == "none"
    if plain or (operand is not None and operand.type.dtype != "bool"):
        return None
    return "reduces booleans"


_CHECK = both(takes(MOVED, INDICES, MOVED), _check_reduction)

SCATTERING: dict[str, Rule] = {
    "ScatterElements": Rule(_load_scatter_elements, _CHECK),
    "ScatterND": Rule(_load_scatter_nd, _CHECK),
}
