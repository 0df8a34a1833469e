"""Trains a predictor to do what the rest of the base model does (GATI, section 3.1; [34])."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from brisk.exits.learning.settings import PredictorSettings


def distillation_loss(
    logits: torch.Tensor, teacher: torch.Tensor, labels: torch.Tensor, settings: PredictorSettings
) -> torch.Tensor:
    """Cross-entropy with the labels, and divergence from the teacher's softened distribution.

    ``teacher``: the base model's distribution, float32 [rows, classes]. Softening happens on its
    logarithm, so probabilities are enough.
    """
    heat = settings.temperature
    soft_teacher = (teacher.clamp_min(1e-7).log() / heat).softmax(1)
    soft = functional.kl_div((logits / heat).log_softmax(1), soft_teacher, reduction="batchmean")
    hard = functional.cross_entropy(logits, labels)
    return settings.soft_share * heat * heat * soft + (1 - settings.soft_share) * hard


def train_predictor(
    network: nn.Module,
    hidden: torch.Tensor,
    teacher: torch.Tensor,
    labels: torch.Tensor,
    settings: PredictorSettings,
    seed: int,
) -> None:
    """Fit ``network`` in place; deterministic for one thread and one seed.

    ``hidden`` float32 [rows, ...], ``teacher`` float32 [rows, classes], ``labels`` int64 [rows].
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
            logits = network(hidden[chosen])
            loss = distillation_loss(logits, teacher[chosen], labels[chosen], settings)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch
            optimizer.step()
            schedule.step()
    network.eval()
