"""Gradients written out by hand, against autograd, and what is fitted with them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from brisk.exits.heads.distance_gate import DistanceGate
from brisk.exits.heads.lookup import LookUp, Selector
from brisk.exits.learning import predictor as predictor_module
from brisk.exits.learning.predictor import (
    START,
    OneCycle,
    PredictorSettings,
    Wanted,
    distillation_loss,
    exposure_loss,
    fit_last_layer,
)
from brisk.exits.learning.selection import (
    NO_CLASS,
    OUTLIERS_WEIGHT,
    SelectorSettings,
    _gradients,
    fit_selection,
    train_selector,
)
from support.exits.losses import asymmetric_loss


def test_the_last_layer_s_gradient_is_that_of_its_losses() -> None:
    torch.manual_seed(0)
    settings = PredictorSettings(temperature=3.0, soft_share=0.6, exposure=0.4)
    logits = torch.randn(12, 5, requires_grad=True)
    teacher = torch.randn(7, 5).softmax(1)
    known, unknown = logits[:7], logits[7:]
    loss = distillation_loss(known, teacher, teacher.argmax(1), settings)
    (loss + settings.exposure * exposure_loss(unknown)).backward()  # type: ignore[no-untyped-call]
    wanted = Wanted.of_samples(teacher, settings).beside(Wanted.of_outliers(5, 5, settings))
    found = wanted.gradient(logits.detach().T, settings.temperature)
    torch.testing.assert_close(found.T, logits.grad)


def test_the_selector_s_gradients_are_those_of_its_loss() -> None:
    torch.manual_seed(0)
    selector, settings = Selector(8), SelectorSettings(false_hit_cost=3.0)
    logits, distances = torch.randn(20, 8), torch.randn(20)
    agrees = (torch.rand(20) > 0.3).float()
    weights = torch.rand(20)
    asymmetric_loss(selector(logits, distances), agrees, weights, 3.0).backward()  # type: ignore[no-untyped-call]
    first, last = selector.network[0], selector.network[2]
    with torch.no_grad():
        seen = selector.seen(logits, distances)
        found = _gradients(first, last, seen, agrees, weights, settings)  # type: ignore[arg-type]
    expected = (first.weight.grad, first.bias.grad, last.weight.grad, last.bias.grad)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_steps_are_those_of_torch_at_the_same_rate() -> None:
    torch.manual_seed(0)
    ours, theirs = torch.randn(4, 3), nn.Parameter(torch.zeros(4, 3))
    theirs.data.copy_(ours)
    steps = OneCycle((ours,), 1e-2, 20)
    reference = torch.optim.AdamW([theirs], weight_decay=steps.weight_decay)
    for _ in range(20):
        gradient = torch.randn(4, 3)
        reference.param_groups[0]["lr"] = steps.rate
        theirs.grad = gradient
        reference.step()
        steps.take((gradient,))
    torch.testing.assert_close(ours, theirs.data)


def test_the_rate_rises_and_then_falls_to_nothing() -> None:
    steps = OneCycle((torch.zeros(1),), 1.0, 100)
    rates = []
    for _ in range(100):
        rates.append(steps.rate)
        steps.take((torch.zeros(1),))
    assert rates[0] == pytest.approx(1 / START)
    assert rates[30] == pytest.approx(1.0)
    assert rates == [*sorted(rates[:31]), *sorted(rates[31:], reverse=True)]
    assert steps.rate < 1e-3


def separable(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    classes = torch.randint(4, (rows,))
    features = torch.randn(rows, 12) + nn.functional.one_hot(classes, 12) * 4
    return features, nn.functional.one_hot(classes, 4).float()


@pytest.mark.parametrize("halved", [False, True])
def test_a_last_layer_learns_its_classes_and_less_of_an_opinion_of_outliers(
    halved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictor_module, "_has_bfloat16", lambda: halved)
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
    found = selector(logits, distances).sigmoid() > 0.5
    assert (found == (agrees > 0.5)).float().mean() > 0.95


@pytest.mark.parametrize("outliers", [100, 2000])
def test_however_many_outliers_there_are_a_selector_believes_what_is_mostly_right(
    outliers: int,
) -> None:
    """Nothing tells these outliers from ordinary rows: only their weight can decide."""
    torch.manual_seed(0)
    ordinary = 200
    logits, features = torch.randn(ordinary + outliers, 6), torch.randn(ordinary + outliers, 4)
    classes = torch.full((len(logits),), NO_CLASS)
    classes[:ordinary] = logits[:ordinary].argmax(1)
    gate = DistanceGate(4, 6)
    gate.fit(features[:ordinary], classes[:ordinary])
    look_up = LookUp(nn.Linear(4, 6), Selector(6), gate)
    settings = SelectorSettings(false_hit_cost=1.0)
    distances = gate.distance(features, logits.argmax(1))
    fit_selection(look_up, logits, distances, classes, settings, 0, OUTLIERS_WEIGHT)
    gate.limit.fill_(torch.inf)
    scores, _ = look_up.decide(logits[:ordinary], distances[:ordinary])
    assert 0.6 < float(scores.detach().mean()) < 0.9, "about 4 of 5 by weight"
