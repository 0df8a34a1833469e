"""Trains a selector: false hits cost more than false misses (GATI, section 3.1, Table 2)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from brisk.exits.heads.lookup import Selector
from brisk.exits.learning.optimizing import OneCycle
from brisk.exits.learning.settings import SelectorSettings

RIGHT, WEIGHT_DECAY = 0.5, 1e-3


def asymmetric_loss(
    scores: torch.Tensor, agrees: torch.Tensor, weights: torch.Tensor, false_hit_cost: float
) -> torch.Tensor:
    """Cross-entropy of hits, rows of wrong predictions weighted by ``false_hit_cost``, too.

    ``scores``: logits float32 [rows]; ``agrees``: 1.0 where the prediction is the base model's;
    ``weights`` float32 [rows].
    """
    weight = weights * torch.where(agrees > RIGHT, 1.0, false_hit_cost)
    return functional.binary_cross_entropy_with_logits(scores, agrees, weight)


def train_selector(
    selector: Selector,
    logits: torch.Tensor,
    distances: torch.Tensor,
    agrees: torch.Tensor,
    weights: torch.Tensor,
    settings: SelectorSettings,
    seed: int,
) -> None:
    """Fit ``selector`` in place on a trained predictor's ``logits`` [rows, classes].

    ``distances``: the gate's, ``weights``: the rows', float32 [rows] both.
    Rows of noise have ``agrees`` 0, whatever is predicted for them.
    """
    generator = torch.Generator().manual_seed(seed)
    first, _, last = selector.network
    assert isinstance(first, nn.Linear), "as Selector is made"
    assert isinstance(last, nn.Linear), "as Selector is made"
    tensors = (first.weight, first.bias, last.weight, last.bias)
    batches = max(1, len(logits) // settings.batch_rows)
    epochs = min(settings.epochs, max(1, settings.row_visits // len(logits)))
    steps = OneCycle(tensors, settings.learning_rate, batches * epochs)
    steps.weight_decay = WEIGHT_DECAY
    with torch.no_grad():
        seen = selector.seen(logits, distances)
        for _ in range(epochs):
            for chosen in torch.randperm(len(seen), generator=generator).tensor_split(batches):
                rows = (seen[chosen], agrees[chosen], weights[chosen])
                steps.take(_gradients(first, last, *rows, settings))
    selector.eval()


def _gradients(
    first: nn.Linear,
    last: nn.Linear,
    seen: torch.Tensor,
    agrees: torch.Tensor,
    weights: torch.Tensor,
    settings: SelectorSettings,
) -> tuple[torch.Tensor, ...]:
    """Of ``asymmetric_loss``, by both layers' weights and biases."""
    hidden = first(seen).relu_()
    scores = last(hidden).squeeze(1)
    weight = weights * torch.where(agrees > RIGHT, 1.0, settings.false_hit_cost)
    error = ((scores.sigmoid() - agrees) * weight / len(seen)).unsqueeze(1)
    inner = (error @ last.weight) * (hidden > 0)
    return inner.T @ seen, inner.sum(0), error.T @ hidden, error.sum(0)
