"""Trains a selector: false hits cost more than false misses (GATI, section 3.1, Table 2)."""

from __future__ import annotations

import torch
from torch.nn import functional

from brisk.exits.learning.settings import SelectorSettings
from brisk.exits.lookup import Selector


def asymmetric_loss(
    scores: torch.Tensor, agrees: torch.Tensor, false_hit_cost: float
) -> torch.Tensor:
    """Cross-entropy of hits, rows of wrong predictions weighted by ``false_hit_cost``.

    ``scores``: logits float32 [rows]; ``agrees``: 1.0 where the prediction is the base model's.
    """
    weight = torch.where(agrees > 0.5, 1.0, false_hit_cost)
    return functional.binary_cross_entropy_with_logits(scores, agrees, weight)


def train_selector(
    selector: Selector,
    logits: torch.Tensor,
    distances: torch.Tensor,
    agrees: torch.Tensor,
    settings: SelectorSettings,
    seed: int,
) -> None:
    """Fit ``selector`` in place on a trained predictor's ``logits`` [rows, classes].

    ``distances``: the gate's, float32 [rows].
    Rows of noise have ``agrees`` 0, whatever is predicted for them.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(selector.parameters(), weight_decay=1e-3)
    batches = max(1, len(logits) // settings.batch_rows)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.learning_rate, total_steps=batches * settings.epochs
    )
    for _ in range(settings.epochs):
        for chosen in torch.randperm(len(logits), generator=generator).tensor_split(batches):
            loss = asymmetric_loss(
                selector(logits[chosen], distances[chosen]),
                agrees[chosen],
                settings.false_hit_cost,
            )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch
            optimizer.step()
            schedule.step()
    selector.eval()
