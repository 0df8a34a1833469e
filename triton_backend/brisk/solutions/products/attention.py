"""Scaled dot-product attention: Brisk's fused pattern (see ``Layer``), by torch's kernel.

Rows whose every key is masked with minus infinity are zero, as with ``zero_masked_rows``; without
it the definition makes them 0/0.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from brisk.graph.program import ATTENTION
from brisk.solutions.base import APPLIES, Applicability, Kernel, LoadContext, Problem, Solution
from brisk.solutions.binding import bound_kernel, constant_operands
from brisk.solutions.rules import attribute

_attention = torch.nn.functional.scaled_dot_product_attention


class FusedAttention(Solution):
    """Scores are never written to memory whole, save where an operand is to be broadcast."""

    name = "fused_attention"

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset({ATTENTION})

    def check(self, problem: Problem) -> Applicability:
        return APPLIES  # whoever writes the pattern has looked at ranks and dtypes

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        scale = float(attribute(problem, "scale", 1.0))
        zeroes = bool(attribute(problem, "zero_masked_rows", 0))

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

        return bound_kernel(problem, compute, constant_operands(problem, len(problem.operands)))


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


SOLUTIONS: tuple[Solution, ...] = (FusedAttention(),)
