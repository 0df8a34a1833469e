"""Fits what decides about a trained predictor's answers: the gate's limit, then the selector."""

from __future__ import annotations

import math

import torch
from torch import nn

from brisk.exits.heads.lookup import LookUp
from brisk.exits.learning.selector import train_selector
from brisk.exits.learning.settings import SelectorSettings

NO_CLASS = -1
"""Of rows that no answer is right for."""

PREDICTED_ROWS = 256

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


def predict(predictor: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Logits of all rows, as a tensor that training may read."""
    with torch.no_grad():
        return torch.cat([predictor(part) for part in torch.split(hidden, PREDICTED_ROWS)])
