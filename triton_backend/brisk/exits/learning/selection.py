"""Fits what decides about a trained predictor's answers: the gate's limit, then the selector."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from brisk.exits.heads.lookup import LookUp, Selector
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
    """By both layers' weights and biases, of the cross-entropy of hits, rows of wrong predictions
    weighted by ``false_hit_cost``, too.
    """
    hidden = first(seen).relu_()
    scores = last(hidden).squeeze(1)
    weight = weights * torch.where(agrees > RIGHT, 1.0, settings.false_hit_cost)
    error = ((scores.sigmoid() - agrees) * weight / len(seen)).unsqueeze(1)
    inner = (error @ last.weight) * (hidden > 0)
    return inner.T @ seen, inner.sum(0), error.T @ hidden, error.sum(0)


NO_CLASS = -1
"""Of rows that no answer is right for."""

OUTLIERS_WEIGHT = 0.25
"""Of all outliers together, over that of the ordinary rows, where a selector is trained first.

With 2.5 times as many outliers as rows, all of weight 1, a selector behind half of a ResNet-56
hit 29 to 32 % at 97 % agreement where the predictor's softmax alone hit 44 %; so weighted it hits
38 to 40 %, and 36 to 39 % instead of 30 behind the floor, which keeps the same outliers out.
"""


def fit_selection(
    look_up: LookUp,
    logits: torch.Tensor,
    distances: torch.Tensor,
    classes: torch.Tensor,
    settings: SelectorSettings,
    seed: int,
    outliers_weight: float = math.inf,
) -> float:
    """Set the limit of a fitted gate and train the selector, on rows that the predictor never saw.

    Gives what ``LookUp.doubted`` says of the ordinary rows.

    ``logits`` [rows, classes] as predicted, ``distances`` float32 [rows] the gate's of them,
    ``classes`` int64 [rows] the base model's, or NO_CLASS for outliers; these weigh at most
    ``outliers_weight`` times as much as all ordinary rows, and each no more than one of them.
    """
    real = classes != NO_CLASS
    look_up.gate.set_limit(distances[real])
    relative = look_up.gate.relative(distances)
    agrees = (logits.argmax(1) == classes).float()
    ordinary = int(real.sum())
    light = outliers_weight * ordinary / max(len(real) - ordinary, 1)
    weights = torch.where(real, 1.0, min(1.0, light))
    train_selector(look_up.selector, logits, relative, agrees, weights, settings, seed)
    return look_up.doubted(logits[real], distances[real])
