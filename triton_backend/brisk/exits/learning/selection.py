"""Training of the judge of a predictor's answers: the gate's limit, the selector, the floor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from brisk.exits.heads.exit_head import Predicted, SelectedHead, Selector
from brisk.exits.learning.predictor import OneCycle


@dataclass(frozen=True, slots=True)
class SelectorSettings:
    """The training of a selector."""

    epochs: int = 30
    batch_rows: int = 128
    learning_rate: float = 1e-2
    false_hit_cost: float = 4.0
    """The weight of a wrong prediction's row against a right one's."""
    row_visits: int = 40_000
    """The most visits of rows in all: with many rows there are fewer epochs."""


RIGHT, WEIGHT_DECAY = 0.5, 1e-3


def train_selector(
    selector: Selector,
    logits: torch.Tensor,
    distances: torch.Tensor,
    agrees: torch.Tensor,
    weights: torch.Tensor,
    settings: SelectorSettings,
    seed: int,
) -> None:
    """Fit ``selector`` in place on a trained predictor's ``logits`` [rows, classes]: false hits
    cost more than false misses (GATI, section 3.1, Table 2).

    ``distances``: the gate's, ``weights``: the rows', float32 [rows] both. Rows of noise have
    ``agrees`` 0, whatever is predicted for them.
    """
    generator = torch.Generator().manual_seed(seed)
    first, _, last = selector.network
    assert isinstance(first, nn.Linear), "as Selector is made"
    assert isinstance(last, nn.Linear), "as Selector is made"
    tensors = (first.weight, first.bias, last.weight, last.bias)
    batches = max(1, len(logits) // settings.batch_rows)
    epochs = min(settings.epochs, max(1, settings.row_visits // len(logits)))
    steps = OneCycle(tensors, settings.learning_rate, batches * epochs, WEIGHT_DECAY)
    with torch.no_grad():
        seen = selector.seen(logits, distances)
        for _ in range(epochs):
            for chosen in torch.randperm(len(seen), generator=generator).tensor_split(batches):
                gradients = selector_gradients(
                    first,
                    last,
                    seen[chosen],
                    agrees=agrees[chosen],
                    weights=weights[chosen],
                    settings=settings,
                )
                steps.take(gradients)
    selector.eval()


def selector_gradients(
    first: nn.Linear,
    last: nn.Linear,
    seen: torch.Tensor,
    agrees: torch.Tensor,
    weights: torch.Tensor,
    settings: SelectorSettings,
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of the hits' cross-entropy by both layers' weights and biases.

    Rows of wrong predictions are weighted by ``false_hit_cost``, too.
    """
    hidden = first(seen).relu_()
    scores = last(hidden).squeeze(1)
    weight = weights * torch.where(agrees > RIGHT, 1.0, settings.false_hit_cost)
    error = ((scores.sigmoid() - agrees) * weight / len(seen)).unsqueeze(1)
    inner = (error @ last.weight) * (hidden > 0)
    return inner.T @ seen, inner.sum(0), error.T @ hidden, error.sum(0)


OUTLIERS_WEIGHT = 0.25
"""The weight of all outliers together over that of the ordinary rows in the first training: with
all outliers of weight 1 a selector hits a quarter less, and keeps the same outliers out."""


def fit_selection(
    head: SelectedHead,
    rows: Predicted,
    for_selector: Predicted,
    for_floor: Predicted,
    settings: SelectorSettings,
    seed: int,
    outliers_weight: float = math.inf,
) -> SelectedHead:
    """Return ``head`` with its gate's limit, its selector and its floor fitted to rows that the
    predictor never saw.

    ``for_selector``: outliers, for which no answer is right; they weigh at most
    ``outliers_weight`` times as much as ``rows``, and each no more than one of these.
    ``for_floor``: other outliers, whose ``classes`` are their kinds.
    """
    head.gate.set_limit(rows.distances)
    ordinary, outliers = len(rows.classes), len(for_selector.classes)
    light = min(1.0, outliers_weight * ordinary / max(outliers, 1))
    right = (rows.logits.argmax(1) == rows.classes).float()
    train_selector(
        head.selector,
        torch.cat([rows.logits, for_selector.logits]),
        head.gate.relative(torch.cat([rows.distances, for_selector.distances])),
        torch.cat([right, torch.zeros(outliers)]),
        torch.cat([torch.ones(ordinary), torch.full((outliers,), light)]),
        settings,
        seed,
    )
    if len(for_floor.classes):
        head.set_floor(rows, for_floor)
    return head.eval().requires_grad_(False)
