"""Scaled dot-product attention: Brisk's fused pattern (see ``Layer``), by torch's kernel.

Rows whose every key is masked with minus infinity are zero, as with ``zero_masked_rows``; without
it the definition makes them 0/0.
"""

from __future__ import annotations

import torch

from brisk.graph.program import ATTENTION
from brisk.solutions.base import Kernel, Problem
from brisk.solutions.rules import Rule, anything, bind

_attention = torch.nn.functional.scaled_dot_product_attention


def _load_attention(problem: Problem) -> Kernel:
    """Scores are never written to memory whole, save where an operand is to be broadcast."""
    scale = float(problem.attribute("scale", 1.0))
    zeroes = bool(problem.attribute("zero_masked_rows", 0))

    def compute(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        turned = key.transpose(2, 3)
        if mask is not None and mask.dim() < 4:
            mask = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
        if _fit(query, turned, value, mask):
            return _attention(query, turned, value, mask, scale=scale)
        scores = query @ key * scale
        made = torch.softmax(scores if mask is None else scores + mask, -1)
        return (torch.where(made.isnan(), 0.0, made) if zeroes else made) @ value

    return bind(problem, compute)


def _fit(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> bool:
    """Whether torch's kernel takes them: batch and heads are equal, no mask widens the scores."""
    if not query.shape[:2] == key.shape[:2] == value.shape[:2]:
        return False
    if mask is None:
        return True
    scores = (*query.shape[:3], key.shape[2])
    return all(size in (1, whole) for size, whole in zip(mask.shape, scores, strict=True))


_, _NAME = ATTENTION

FUSED_ATTENTION: dict[str, Rule] = {_NAME: Rule(_load_attention, anything)}
"""Whoever writes the pattern has looked at ranks and dtypes."""
