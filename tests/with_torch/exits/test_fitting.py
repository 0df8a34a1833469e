"""The learning of predictors' last layers and of selectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from brisk.exits.heads.distance_gate import DistanceGate
from brisk.exits.heads.exit_head import Predicted, SelectedHead, Selector
from brisk.exits.learning.predictor import PredictorSettings, fit_last_layer
from brisk.exits.learning.selection import (
    OUTLIERS_WEIGHT,
    SelectorSettings,
    fit_selection,
    train_selector,
)


def separable(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    classes = torch.randint(4, (rows,))
    features = torch.randn(rows, 12) + nn.functional.one_hot(classes, 12) * 4
    return features, nn.functional.one_hot(classes, 4).float()


def test_a_last_layer_learns_its_classes_and_less_of_an_opinion_of_outliers() -> None:
    features, teacher = separable(600, 0)
    outliers = torch.randn(100, 12) - 4
    layers = [nn.Linear(12, 4) for _ in range(3)]
    start = {name: tensor.clone() for name, tensor in layers[0].state_dict().items()}
    opinions = []
    unseen, truth = separable(300, 1)
    for layer, exposure in zip(layers, (0.5, 0.5, 0.0), strict=True):
        layer.load_state_dict(start)
        settings = PredictorSettings(epochs=30, learning_rate=2e-2, exposure=exposure)
        fit_last_layer(layer, features, teacher, outliers, settings, seed=1)
        with torch.no_grad():
            assert (layer(unseen).argmax(1) == truth.argmax(1)).float().mean() > 0.95
            opinions.append(float(layer(torch.randn(200, 12) - 4).softmax(1).amax(1).mean()))
    assert torch.equal(layers[0].weight, layers[1].weight)  # deterministic
    assert opinions[0] < opinions[2] - 0.05


def test_a_selector_learns_to_tell_right_from_wrong() -> None:
    torch.manual_seed(0)
    logits = torch.randn(800, 6)
    logits[:, 0] += torch.rand(800) * 8
    distances = torch.zeros(800)
    agrees = (logits.softmax(1).max(1).values > 0.8).float()
    selector = Selector(6)
    weights = torch.ones(len(agrees))
    train_selector(selector, logits, distances, agrees, weights, SelectorSettings(), seed=0)
    hits = selector(logits, distances).sigmoid() > 0.5
    assert (hits == (agrees > 0.5)).float().mean() > 0.95


@pytest.mark.parametrize("outliers", [100, 2000])
def test_however_many_outliers_there_are_a_selector_believes_what_is_mostly_right(
    outliers: int,
) -> None:
    """Nothing tells these outliers from ordinary rows: only their weight can decide."""
    torch.manual_seed(0)
    ordinary, settings = 200, SelectorSettings(false_hit_cost=1.0)
    logits, features = torch.randn(ordinary + outliers, 6), torch.randn(ordinary + outliers, 4)
    classes = logits.argmax(1)
    gate = DistanceGate(4, 6)
    gate.fit(features[:ordinary], classes[:ordinary])
    head = SelectedHead(nn.Linear(4, 6), Selector(6), gate)
    every = Predicted(logits, gate.distance(features, classes), classes)
    rows, strange, nothing = (
        every.take(np.arange(*ends))
        for ends in ((0, ordinary), (ordinary, ordinary + outliers), (0, 0))
    )
    fit_selection(head, rows, strange, nothing, settings, 0, OUTLIERS_WEIGHT)
    gate.limit.fill_(torch.inf)
    scores, _ = head.decide(rows.logits, rows.distances)
    assert 0.6 < float(scores.mean()) < 0.9, "about 4 of 5 by weight"
