"""The distance gate: hidden outputs unlike any that were trained on are never answered early."""

from __future__ import annotations

import torch
from torch import nn

from brisk.exits.variants.base import as_image

WHITENED_FEATURES = 256
"""Up to that many features are decorrelated; more are only scaled."""

SHRINKAGE = 0.1
"""Share of the diagonal in the covariance, so that few samples do not make it singular."""

KEPT = 0.99
"""Share of held-out samples of the training distribution that pass."""


def summary(hidden: torch.Tensor) -> torch.Tensor:
    """Mean and deviation of each channel over its positions, float32 [rows, features]."""
    if hidden.dim() == 2:
        return hidden
    flat = as_image(hidden).flatten(2)
    deviation, mean = torch.std_mean(flat, 2, correction=0)
    return torch.cat([mean, deviation], 1)


class DistanceGate(nn.Module):
    """1 for rows within ``limit`` of the training data, else 0 (Mahalanobis distance).

    ``projection`` is [features, features], or [features] where only the scale is taken out.
    """

    centre: torch.Tensor
    projection: torch.Tensor
    limit: torch.Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        shape = (features, features) if features <= WHITENED_FEATURES else (features,)
        self.register_buffer("centre", torch.zeros(features))
        self.register_buffer("projection", torch.zeros(shape))
        self.register_buffer("limit", torch.full((), torch.inf))

    def distance(self, hidden: torch.Tensor) -> torch.Tensor:
        """Squared, float32 [rows]."""
        offset = summary(hidden) - self.centre
        flat = self.projection.dim() == 1
        scaled = offset * self.projection if flat else offset @ self.projection
        return scaled.square().sum(1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.distance(hidden) <= self.limit

    @torch.no_grad()
    def fit(self, hidden: torch.Tensor) -> None:
        """Centre and scale from hidden outputs of training data, [rows, ...]."""
        features = summary(hidden)
        self.centre.copy_(features.mean(0))
        offset = features - self.centre
        variance = offset.square().mean(0)
        floor = 1e-6 * variance.mean().clamp_min(1e-12)
        if self.projection.dim() == 1:
            self.projection.copy_((variance + floor).rsqrt())
            return
        covariance = (offset.T @ offset / len(offset)).double()
        covariance = (1 - SHRINKAGE) * covariance + SHRINKAGE * covariance.diagonal().diag()
        covariance += torch.eye(len(covariance)) * float(floor)
        values, vectors = torch.linalg.eigh(covariance)
        self.projection.copy_((vectors * values.clamp_min(float(floor)).rsqrt()).float())

    @torch.no_grad()
    def set_limit(self, held_out: torch.Tensor) -> None:
        """Let ``KEPT`` of held-out hidden outputs pass."""
        self.limit.copy_(torch.quantile(self.distance(held_out), KEPT))
