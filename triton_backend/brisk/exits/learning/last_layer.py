"""Fits the last layer of a predictor again, with gradients written out: retraining is that alone.

What ``train_predictor`` does for any network, at a tenth of the cost for a linear layer: autograd
and copies of rows took most of the time.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from brisk.exits.learning.optimizing import OneCycle
from brisk.exits.learning.predictor import EXPOSED_SHARE, softened
from brisk.exits.learning.settings import PredictorSettings


def last_layer(predictor: nn.Module) -> nn.Linear:
    """The layer from features to classes, which all variants end with."""
    found = predictor[-1] if isinstance(predictor, nn.Sequential) else predictor
    if not isinstance(found, nn.Linear):
        raise TypeError(f"a predictor ends with {type(found).__name__}, expected Linear")
    return found


def features_of(predictor: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """What goes into the last layer, float32 [rows, ...]."""
    if not isinstance(predictor, nn.Sequential):
        return hidden
    result: torch.Tensor = predictor[:-1](hidden)
    return result


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """What predictions of rows should be, and how much it matters; classes come first.

    ``target`` float32 [classes, rows]. Of a row's distribution at the settings' temperature counts
    ``heated``, of the plain one ``plain``, float32 [rows] both.
    """

    target: torch.Tensor
    heated: torch.Tensor
    plain: torch.Tensor

    @classmethod
    def of_samples(cls, teacher: torch.Tensor, settings: PredictorSettings) -> Wanted:
        """For ``distillation_loss``; ``teacher``: the base model's distribution [rows, classes],
        whose greatest class is the label."""
        rows, heat = len(teacher), settings.temperature
        heated = heat * settings.soft_share / rows
        plain = (1 - settings.soft_share) / rows
        labels = functional.one_hot(teacher.argmax(1), teacher.shape[1])
        target = (softened(teacher, heat) * heated + labels * plain).T.contiguous()
        return cls(target, torch.full((rows,), heated), torch.full((rows,), plain))

    @classmethod
    def of_outliers(cls, rows: int, classes: int, settings: PredictorSettings) -> Wanted:
        """For ``exposure_loss``: none of them more than another."""
        plain = settings.exposure / max(rows, 1)
        target = torch.full((classes, rows), plain / classes)
        return cls(target, torch.zeros(rows), torch.full((rows,), plain))

    def beside(self, other: Wanted) -> Wanted:
        return Wanted(
            torch.cat([self.target, other.target], 1),
            torch.cat([self.heated, other.heated]),
            torch.cat([self.plain, other.plain]),
        )

    def gradient(self, logits: torch.Tensor, temperature: float) -> torch.Tensor:
        """Of the losses' sum by ``logits``, [classes, rows] both."""
        made = (logits / temperature).softmax(0).mul_(self.heated)
        return made.addcmul_(logits.softmax(0), self.plain).sub_(self.target)


@torch.no_grad()
def fit_last_layer(
    layer: nn.Linear,
    features: torch.Tensor,
    teacher: torch.Tensor,
    outliers: torch.Tensor,
    settings: PredictorSettings,
    seed: int,
) -> None:
    """Fit ``layer`` in place; deterministic for one thread and one seed.

    ``features`` float32 [rows, inputs], ``teacher`` float32 [rows, classes]: the base model's
    distribution, whose greatest class is the label; ``outliers`` float32 [any rows, inputs].
    Rows are shuffled once, batches in each epoch. Each has its outliers, so that one product gives
    all logits and one all gradients. These read megabytes from memory and do little with them:
    the layer's own orientation took twice as long, and rows of float32 take twice as long as
    those of bfloat16, where the processor multiplies them. Weights and sums are float32.
    """
    form = torch.bfloat16 if _has_bfloat16() else torch.float32
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(features), generator=generator)
    count = max(1, len(features) // settings.batch_rows)
    batches = []
    strangers = _shares(
        len(outliers), round(settings.batch_rows * EXPOSED_SHARE), count, generator
    )
    for known, strange in zip(order.tensor_split(count), strangers, strict=True):
        wanted = Wanted.of_samples(teacher[known], settings)
        unknown = Wanted.of_outliers(len(strange), teacher.shape[1], settings)
        rows = torch.cat([features[known], outliers[strange]]).to(form)
        batches.append((rows, wanted.beside(unknown)))
    weight, bias = layer.weight, layer.bias
    steps = OneCycle((weight, bias), settings.learning_rate, count * settings.epochs)
    steps.weight_decay = settings.weight_decay
    for _ in range(settings.epochs):
        for number in torch.randperm(count, generator=generator).tolist():
            rows, wanted = batches[number]
            logits = (weight.to(form) @ rows.T).float().add_(bias.unsqueeze(1))
            error = wanted.gradient(logits, settings.temperature)
            steps.take(((error.to(form) @ rows).float(), error.sum(1)))


def _shares(
    rows: int, each: int, count: int, generator: torch.Generator
) -> Sequence[torch.Tensor]:
    """``count`` times ``each`` of ``rows`` shuffled rows, which come again where they are few."""
    order = torch.randperm(rows, generator=generator)
    if rows:
        order = order.repeat(-(-count * each // rows))[: count * each]
    return order.tensor_split(count)


@functools.cache
def _has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 itself (AVX-512, AMX or Arm's instructions)."""
    try:
        return "bf16" in Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return False
