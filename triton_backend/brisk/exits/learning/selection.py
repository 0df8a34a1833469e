"""Fits what decides about a trained predictor's answers: the gate's limit, then the selector."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from brisk.exits.heads.lookup import Predicted, SelectedLookUp, Selector
from brisk.exits.learning.predictor import OneCycle


@dataclass(frozen=True, slots=True)
class SelectorSettings:
    """``false_hit_cost``: weight of a wrong prediction's row against a right one's.

    Of many rows the epochs are fewer: no more than ``row_visits`` in all.
    """

    epochs: int = 30
    batch_rows: int = 128
    learning_rate: float = 1e-2
    false_hit_cost: float = 4.0
    row_visits: int = 40_000


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
    steps = OneCycle(tensors, settings.learning_rate, batches * epochs, WEIGHT_DECAY)
    with torch.no_grad():
        seen = selector.seen(logits, distances)
        for _ in range(epochs):
            for chosen in torch.randperm(len(seen), generator=generator).tensor_split(batches):
                rows = (seen[chosen], agrees[chosen], weights[chosen])
                steps.take(selector_gradients(first, last, *rows, settings))
    selector.eval()


def selector_gradients(
    first: nn.Linear,
    last: nn.Linear,
    seen: torch.Tensor,
    agrees: torch.Tensor,
    weights: torch.Tensor,
    settings: SelectorSettings,
) -> tuple[torch.Tensor, ...]:
    """By both layers' weights and biases, of the cross-entropy of hits, rows of wrong predictions
    weighted by ``false_hit_cost``, too.
    """
    hidden = first(seen).relu_()
    scores = last(hidden).squeeze(1)
    weight = weights * torch.where(agrees > RIGHT, 1.0, settings.false_hit_cost)
    error = ((scores.sigmoid() - agrees) * weight / len(seen)).unsqueeze(1)
    inner = (error @ last.weight) * (hidden > 0)
    return inner.T @ seen, inner.sum(0), error.T @ hidden, error.sum(0)


OUTLIERS_WEIGHT = 0.25
"""Of all outliers together, over that of the ordinary rows, where a selector is trained first:
with more of them, all of weight 1, it hits a quarter less, and keeps the same outliers out."""


def fit_selection(
    look_up: SelectedLookUp,
    rows: Predicted,
    learned: Predicted,
    kept: Predicted,
    settings: SelectorSettings,
    seed: int,
    outliers_weight: float = math.inf,
) -> SelectedLookUp:
    """``look_up``, with the limit of its fitted gate, its selector and its floor from rows that
    the predictor never saw.

    ``learned``: outliers for the selector, for which no answer is right; they weigh at most
    ``outliers_weight`` times as much as ``rows``, and each no more than one of them. ``kept``:
    others for the floor, their kinds being their ``classes``.
    """
    look_up.gate.set_limit(rows.distances)
    ordinary, strange = len(rows.classes), len(learned.classes)
    light = min(1.0, outliers_weight * ordinary / max(strange, 1))
    right = (rows.logits.argmax(1) == rows.classes).float()
    train_selector(
        look_up.selector,
        torch.cat([rows.logits, learned.logits]),
        look_up.gate.relative(torch.cat([rows.distances, learned.distances])),
        torch.cat([right, torch.zeros(strange)]),
        torch.cat([torch.ones(ordinary), torch.full((strange,), light)]),
        settings,
        seed,
    )
    if len(kept.classes):
        look_up.set_floor(rows, kept)
    return look_up.eval().requires_grad_(False)
