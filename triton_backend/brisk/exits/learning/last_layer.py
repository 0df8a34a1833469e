"""Fits the last layer of a predictor again, with gradients written out: retraining is that alone.

What ``train_predictor`` does for any network, at a tenth of the cost for a linear layer: autograd
and copies of rows took most of the time.
"""

from __future__ import annotations

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


def distillation_gradient(
    logits: torch.Tensor,
    soft_teacher: torch.Tensor,
    labels: torch.Tensor,
    settings: PredictorSettings,
) -> torch.Tensor:
    """Of ``distillation_loss`` by the logits; ``soft_teacher`` as ``softened``, labels one-hot."""
    heat, soft = settings.temperature, settings.soft_share
    by_teacher = ((logits / heat).softmax(1) - soft_teacher) * (heat * soft)
    return (by_teacher + (logits.softmax(1) - labels) * (1 - soft)) / len(logits)


def exposure_gradient(logits: torch.Tensor) -> torch.Tensor:
    """Of ``exposure_loss`` by the logits."""
    return (logits.softmax(1) - 1 / logits.shape[1]) / len(logits)


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
    Rows are shuffled once, batches in each epoch.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(features), generator=generator)
    batches = max(1, len(features) // settings.batch_rows)
    known = features[order].tensor_split(batches)
    soft = softened(teacher[order], settings.temperature).tensor_split(batches)
    classes = functional.one_hot(teacher[order].argmax(1), teacher.shape[1]).float()
    labels = classes.tensor_split(batches)
    strange_rows = round(settings.batch_rows * EXPOSED_SHARE)
    shuffled = outliers[torch.randperm(len(outliers), generator=generator)]
    unknown = torch.split(shuffled, strange_rows) if len(outliers) else ()
    weight, bias = layer.weight, layer.bias
    steps = OneCycle((weight, bias), settings.learning_rate, batches * settings.epochs)
    steps.weight_decay = settings.weight_decay
    taken = 0
    for _ in range(settings.epochs):
        for number in torch.randperm(batches, generator=generator).tolist():
            rows = known[number]
            error = distillation_gradient(layer(rows), soft[number], labels[number], settings)
            slope, shift = error.T @ rows, error.sum(0)
            if unknown:
                rows = unknown[taken % len(unknown)]
                error = exposure_gradient(layer(rows)) * settings.exposure
                slope += error.T @ rows
                shift += error.sum(0)
                taken += 1
            steps.take((slope, shift))
