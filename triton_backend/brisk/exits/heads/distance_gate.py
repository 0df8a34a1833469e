"""The distance gate: hidden outputs unlike any that were trained on are never answered early.

A hidden output is summarised by statistics of its channels. Of these a gate knows the subspace in
which training data varies, the centre of each class there, and how much is left outside of it.
The distance of a row is its Mahalanobis distance to the centre *of the class that is predicted*
(Lee and others, NeurIPS 2018), plus what of it lies outside the subspace (the residual of
probabilistic principal components; compare ViM, Wang and others, CVPR 2022): an input that is
unlike the data, or like the data of another class than the predicted one, is far.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from brisk.exits.heads.predictors import as_image

RANK = 64
"""Dimensions of the subspace, at most."""

EXACT_FEATURES, SPARE = 512, 16
"""With more features their directions are found by a randomised decomposition of spare rank."""

SHRINKAGE = 0.1
"""Share of the diagonal in the covariance, so that few samples do not make it singular."""

CENTRE_ROWS = 5.0
"""A class's centre is drawn towards that of all data as if by so many rows."""

PART_ROWS = 256

STEPS = 127
"""Of a feature's greatest coordinate, in which its others are given."""

KEPT = 0.98
"""Share of held-out samples of the training distribution that pass."""


def summary(hidden: torch.Tensor) -> torch.Tensor:
    """Each channel's mean in four quarters and root mean square, float32 [rows, features]; a
    deviation says no more and takes torch twenty times as long."""
    if hidden.dim() == 2:
        return hidden
    image = as_image(hidden)
    quarters = functional.adaptive_avg_pool2d(image, (2, 2)).flatten(1)
    return torch.cat([quarters, image.square().mean((2, 3)).sqrt()], 1)


class DistanceGate(nn.Module):
    """How far summaries of rows are from the training data of a class, and what is near enough.

    ``basis`` [features, rank] takes standardised features into the subspace, ``whitening``
    [rank, rank] makes the spread within a class 1 there, ``centres`` [classes, rank] are of that
    form. ``outside``: 1 over the mean square of a feature outside of the subspace.
    """

    mean: torch.Tensor
    scale: torch.Tensor
    basis: torch.Tensor
    whitening: torch.Tensor
    centres: torch.Tensor
    outside: torch.Tensor
    limit: torch.Tensor

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        rank = min(features, RANK)
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))
        self.register_buffer("basis", torch.zeros(features, rank))
        self.register_buffer("whitening", torch.eye(rank))
        self.register_buffer("centres", torch.zeros(classes, rank))
        self.register_buffer("outside", torch.zeros(()))
        self.register_buffer("limit", torch.full((), torch.inf))

    def distance(self, features: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """Squared, float32 [rows]; ``classes`` int64 [rows] are the predicted ones."""
        inside, outside = self._split(features)
        return (inside - self.centres[classes]).square().sum(1) + outside

    def relative(self, distances: torch.Tensor) -> torch.Tensor:
        """The logarithm of distances over the limit: above 0 is too far; float32 [rows]."""
        return (distances / self.limit).clamp_min(1e-6).log()

    def _split(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Whitened coordinates in the subspace, and the weighted squares outside of it."""
        standard = (features - self.mean).mul_(self.scale)
        inside = standard @ self.basis
        rest = (_squares(standard) - _squares(inside)).clamp_min(0)
        return inside @ self.whitening, rest * self.outside

    @torch.no_grad()
    def fit(self, features: torch.Tensor, classes: torch.Tensor) -> None:
        """From summaries of training data, [rows, features], and the base model's classes."""
        self.mean.copy_(features.mean(0))
        standard = features - self.mean
        variance = _mean_squares(standard)
        floor = 1e-6 * variance.mean().clamp_min(1e-12)
        self.scale.copy_((variance + floor).rsqrt())
        standard.mul_(self.scale)
        rank = self.basis.shape[1]
        directions = _main_directions(standard, self.basis)
        # In coarse steps: few rows lie wholly in their subspace, and the rest would be mere noise.
        unit = directions.abs().amax(1, keepdim=True).clamp_min(1e-30) / STEPS
        self.basis.copy_((directions / unit).round() * unit)
        inside = standard @ self.basis
        beyond = standard.shape[1] - rank
        if beyond:
            rest = _squares(standard) - _squares(inside)
            self.outside.copy_(beyond / rest.mean().clamp_min(1e-6) / beyond)
        centres = self._class_means(inside, classes)
        offset = inside - centres[classes]
        covariance = (offset.T @ offset / len(offset)).double()
        covariance = (1 - SHRINKAGE) * covariance + SHRINKAGE * covariance.diagonal().diag()
        values, turned = torch.linalg.eigh(covariance)
        least = 1e-4 * float(values.max().clamp_min(1e-12))
        self.whitening.copy_((turned * values.clamp_min(least).rsqrt()).float())
        self.centres.copy_(centres @ self.whitening)

    def _class_means(self, inside: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """[classes, rank], in the subspace, before whitening; the centre of all is zero."""
        sums = torch.zeros_like(self.centres).index_add_(0, classes, inside)
        counts = torch.bincount(classes, minlength=len(sums)).unsqueeze(1)
        return sums / (counts + CENTRE_ROWS)

    @torch.no_grad()
    def set_limit(self, distances: torch.Tensor) -> None:
        """Let ``KEPT`` of held-out rows pass, whose distances these are."""
        self.limit.copy_(torch.quantile(distances, KEPT))


def _squares(rows: torch.Tensor) -> torch.Tensor:
    """Each row's sum of squares. (Squares in a tensor of their own take ten times as long: the
    kernel has to find fresh pages for tens of megabytes.)"""
    return torch.linalg.vector_norm(rows, dim=1).square()


def _mean_squares(rows: torch.Tensor) -> torch.Tensor:
    """Each column's."""
    sums = [part.square().sum(0) for part in torch.split(rows, PART_ROWS)]
    return torch.stack(sums).sum(0) / len(rows)


def _main_directions(rows: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Orthonormal, [features, rank], of greatest variance; nearly so where there are many.

    ``before``: those of earlier data, from which one step of the power method leads to these, or
    zeros, where there is none.
    """
    rank = before.shape[1]
    if rows.shape[1] <= EXACT_FEATURES:
        _, vectors = torch.linalg.eigh((rows.T @ rows).double())
        return vectors[:, -rank:].float()
    if not before.any():
        _, _, directions = torch.svd_lowrank(rows, q=min(rank + SPARE, *rows.shape), niter=2)
        found = directions[:, :rank]
        return functional.pad(found, (0, rank - found.shape[1]))
    start = torch.cat([before, torch.randn(len(before), SPARE)], 1)
    space, _ = torch.linalg.qr(rows.T @ (rows @ start))
    inside = rows @ space
    _, turned = torch.linalg.eigh((inside.T @ inside).double())
    return space @ turned[:, -rank:].float()
