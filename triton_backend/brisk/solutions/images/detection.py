"""Operators of vision models: boxes that overlap, and images sampled at given places.

Functions take ONNX's attributes under their names.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from brisk.solutions.base import Problem
from brisk.solutions.rules import FLOATS, Rule, calls, single, takes


def _suppress(
    boxes: Tensor,
    scores: Tensor,
    most: Any = None,
    overlap: Any = None,
    threshold: Any = None,
    *,
    center_point_box: int,
) -> Tensor:
    """int64 [selected, 3]: batch, class and box, best first within each class."""
    limit, allowed = int(single(most) or 0), float(single(overlap) or 0.0)
    least = float("-inf") if threshold is None else float(single(threshold))
    corners, ranked = _corners(boxes.cpu(), bool(center_point_box)), scores.cpu()
    rows = []
    for batch in range(ranked.shape[0]):
        for label in range(ranked.shape[1]):
            kept = _keep(corners[batch], ranked[batch, label], limit, allowed, least)
            rows += [(batch, label, box) for box in kept]
    return torch.tensor(rows, dtype=torch.int64, device=boxes.device).reshape(-1, 3)


def _corners(boxes: Tensor, centred: bool) -> Tensor:
    """Boxes as low and high corners; either two opposite ones, or centre and size, are given."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if centred:
        return torch.cat((first - second / 2, first + second / 2), -1)
    return torch.cat((torch.minimum(first, second), torch.maximum(first, second)), -1)


def _keep(boxes: Tensor, scores: Tensor, limit: int, allowed: float, least: float) -> list[int]:
    """Greedy: the best box left, then without those that overlap it by more than ``allowed``."""
    left = (scores > least).nonzero().squeeze(1)
    left = left[torch.sort(scores[left], descending=True, stable=True).indices]
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    kept: list[int] = []
    while left.numel() and len(kept) < limit:
        best, left = left[0], left[1:]
        kept.append(int(best))
        low = torch.maximum(boxes[best, :2], boxes[left, :2])
        high = torch.minimum(boxes[best, 2:], boxes[left, 2:])
        shared = (high - low).clamp(min=0).prod(1)
        union = areas[best] + areas[left] - shared
        left = left[~((union > 0) & (shared / union > allowed))]
    return kept


_SAMPLING = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}


def _sample(x: Tensor, grid: Tensor, mode: str, padding_mode: str, align_corners: int) -> Tensor:
    return functional.grid_sample(x, grid, _SAMPLING[mode], padding_mode, bool(align_corners))


def _check_grid_sample(problem: Problem) -> str | None:
    mode = problem.attribute("mode", "linear")
    if mode not in _SAMPLING or problem.rank() not in ((4,) if mode == "cubic" else (4, 5)):
        return f"mode {mode} at rank {problem.rank()}"
    if problem.dtype(0) != problem.dtype(1):
        return "the grid has another dtype"
    return takes({"float32", "float64"})(problem)


DETECTION: dict[str, Rule] = {
    "NonMaxSuppression": Rule(
        calls(_suppress, 2, 3, 4, center_point_box=0),
        takes({"float32"}, {"float32"}, {"int64"}, FLOATS),
    ),
    "GridSample": Rule(
        calls(_sample, mode="linear", padding_mode="zeros", align_corners=0), _check_grid_sample
    ),
}
