"""Gradients written out by hand, against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from brisk.exits.heads.exit_head import Selector
from brisk.exits.learning.predictor import (
    START,
    OneCycle,
    PredictorSettings,
    Targets,
    distillation_loss,
    exposure_loss,
)
from brisk.exits.learning.selection import (
    SelectorSettings,
    selector_gradients,
)
from support.exits.losses import asymmetric_loss


def test_the_last_layer_s_gradient_is_that_of_its_losses() -> None:
    torch.manual_seed(0)
    settings = PredictorSettings(temperature=3.0, soft_share=0.6, exposure=0.4)
    logits = torch.randn(12, 5, requires_grad=True)
    teacher = torch.randn(7, 5).softmax(1)
    inside, outside = logits[:7], logits[7:]
    loss = distillation_loss(inside, teacher, teacher.argmax(1), settings)
    (loss + settings.exposure * exposure_loss(outside)).backward()  # type: ignore[no-untyped-call]
    targets = Targets.of_samples(teacher, settings).with_rows(Targets.of_outliers(5, 5, settings))
    gradient = targets.gradient(logits.detach().T, settings.temperature)
    torch.testing.assert_close(gradient.T, logits.grad)


def test_the_selector_s_gradients_are_those_of_its_loss() -> None:
    torch.manual_seed(0)
    selector, settings = Selector(8), SelectorSettings(false_hit_cost=3.0)
    logits, distances = torch.randn(20, 8), torch.randn(20)
    agrees = (torch.rand(20) > 0.3).float()
    weights = torch.rand(20)
    asymmetric_loss(selector(logits, distances), agrees, weights, 3.0).backward()  # type: ignore[no-untyped-call]
    first, last = selector.network[0], selector.network[2]
    with torch.no_grad():
        features = selector.seen(logits, distances)
        gradients = selector_gradients(first, last, features, agrees, weights, settings)  # type: ignore[arg-type]
    expected = (first.weight.grad, first.bias.grad, last.weight.grad, last.bias.grad)
    for ours, theirs in zip(gradients, expected, strict=True):
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
