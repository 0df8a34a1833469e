"""Trains a predictor to do what the rest of the base model does (GATI, section 3.1; [34])."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from brisk.exits.learning.settings import PredictorSettings

EXPOSED_SHARE = 0.25
"""Outliers in a batch, over its samples."""


def distillation_loss(
    logits: torch.Tensor, teacher: torch.Tensor, labels: torch.Tensor, settings: PredictorSettings
) -> torch.Tensor:
    """Cross-entropy with the labels, and divergence from the teacher's softened distribution.

    ``teacher``: the base model's distribution, float32 [rows, classes]. Softening happens on its
    logarithm, so probabilities are enough.
    """
    heat = settings.temperature
    soft_teacher = softened(teacher, heat)
    soft = functional.kl_div((logits / heat).log_softmax(1), soft_teacher, reduction="batchmean")
    hard = functional.cross_entropy(logits, labels)
    return settings.soft_share * heat * heat * soft + (1 - settings.soft_share) * hard


def softened(teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """The distribution of the same logits at that temperature."""
    return (teacher.clamp_min(1e-7).log() / temperature).softmax(1)


def exposure_loss(logits: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of outliers' predictions with the uniform distribution."""
    return -logits.log_softmax(1).mean()


def train_predictor(
    network: nn.Module,
    hidden: torch.Tensor,
    teacher: torch.Tensor,
    labels: torch.Tensor,
    outliers: torch.Tensor,
    settings: PredictorSettings,
    seed: int,
) -> None:
    """Fit ``network`` in place; deterministic for one thread and one seed.

    ``hidden`` float32 [rows, ...], ``teacher`` float32 [rows, classes], ``labels`` int64 [rows];
    ``outliers`` float32 [any rows, ...] are hidden outputs of inputs that mean nothing.
    """
    generator = torch.Generator().manual_seed(seed)
    batches = max(1, len(hidden) // settings.batch_rows)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.learning_rate, total_steps=batches * settings.epochs
    )
    network.train()
    for _ in range(settings.epochs):
        order = torch.randperm(len(hidden), generator=generator)
        for chosen in order.tensor_split(batches):
            strange = outliers[_some(len(outliers), len(chosen), generator)]
            logits = network(torch.cat([hidden[chosen], strange]))
            known, unknown = logits[: len(chosen)], logits[len(chosen) :]
            loss = distillation_loss(known, teacher[chosen], labels[chosen], settings)
            if len(unknown):
                loss = loss + settings.exposure * exposure_loss(unknown)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch
            optimizer.step()
            schedule.step()
    network.eval()


def _some(outliers: int, rows: int, generator: torch.Generator) -> torch.Tensor:
    """Numbers of outliers to go with a batch of ``rows``."""
    count = round(rows * EXPOSED_SHARE) if outliers else 0
    return torch.randint(max(outliers, 1), (count,), generator=generator)
