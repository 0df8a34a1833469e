"""Fits what decides about a trained predictor's answers: the gate's limit, then the selector."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

from brisk.exits.heads.lookup import LookUp, Predicted, Selector
from brisk.exits.learning.predictor import Descent


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


WEIGHT_DECAY = 1e-3


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

    ``distances``: the gate's, ``agrees``: 1.0 where the prediction can be used, ``weights``: the
    rows', float32 [rows] all.
    """
    generator = torch.Generator().manual_seed(seed)
    batches = max(1, len(logits) // settings.batch_rows)
    epochs = min(settings.epochs, max(1, settings.row_visits // len(logits)))
    steps = batches * epochs
    descent = Descent(selector.parameters(), settings.learning_rate, steps, WEIGHT_DECAY)
    seen = selector.seen(logits, distances)
    for _ in range(epochs):
        for chosen in torch.randperm(len(seen), generator=generator).tensor_split(batches):
            scores = selector.network(seen[chosen]).squeeze(1)
            descent.step(
                asymmetric_loss(scores, agrees[chosen], weights[chosen], settings.false_hit_cost)
            )
    selector.eval()


def asymmetric_loss(
    scores: torch.Tensor, agrees: torch.Tensor, weights: torch.Tensor, false_hit_cost: float
) -> torch.Tensor:
    """Cross-entropy of hits, rows of wrong predictions weighted by ``false_hit_cost``, too."""
    weight = weights * torch.where(agrees > 0, 1.0, false_hit_cost)
    return functional.binary_cross_entropy_with_logits(scores, agrees, weight)


OUTLIERS_WEIGHT = 0.25
"""Of all outliers together, over that of the ordinary rows, where a selector is trained first:
with more of them, all of weight 1, it hits a quarter less, and keeps the same outliers out."""


def fit_selection(
    look_up: LookUp,
    rows: Predicted,
    learned: Predicted,
    kept: Predicted,
    settings: SelectorSettings,
    seed: int,
    outliers_weight: float = math.inf,
) -> LookUp:
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
