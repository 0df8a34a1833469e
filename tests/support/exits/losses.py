"""The loss whose gradients the selector's training has written out."""

from __future__ import annotations

import torch
from torch.nn import functional

from brisk.exits.learning.selection import RIGHT


def asymmetric_loss(
    scores: torch.Tensor, agrees: torch.Tensor, weights: torch.Tensor, false_hit_cost: float
) -> torch.Tensor:
    """Return the cross-entropy of hits in which wrong predictions weigh ``false_hit_cost`` times
    as much.

    ``scores``: logits float32 [rows]; ``agrees``: 1.0 where the prediction is the base model's;
    ``weights`` float32 [rows].
    """
    weight = weights * torch.where(agrees > RIGHT, 1.0, false_hit_cost)
    return functional.binary_cross_entropy_with_logits(scores, agrees, weight)
