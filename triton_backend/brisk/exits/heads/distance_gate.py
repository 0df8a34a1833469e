"""The distance gate: out-of-distribution hidden outputs are never answered early.

A hidden output is summarised by statistics of its channels. A gate knows the subspace in which the
summaries of training data vary, the centre of each class in it, and the variance outside of it.
The distance of a row is its Mahalanobis distance to the centre *of the predicted class* (Lee and
others, NeurIPS 2018) plus its residual outside the subspace (of probabilistic principal
components; compare ViM, Wang and others, CVPR 2022). So an input is out of distribution if it is
unlike the data, or like the data of another class than the predicted one.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from brisk.exits.heads.predictors import as_image

RANK = 64
"""The most dimensions of the subspace."""

EXACT_FEATURES, SPARE = 512, 16
"""The most features whose directions an exact decomposition finds, and the extra ranks of the
randomised one for more."""

SHRINKAGE = 0.1
"""The share of the diagonal in the covariance, so that few samples do not make it singular."""

CENTRE_ROWS = 5.0
"""The weight, in rows, of the centre of all data in a class's centre."""

PART_ROWS = 256

STEPS = 127
"""The number of steps from 0 to a feature's greatest coordinate; the other ones are rounded to
them."""

KEPT = 0.98
"""The share of held-out samples of the training distribution that pass."""


def summary(hidden: torch.Tensor) -> torch.Tensor:
    """Return each channel's mean in four quarters and root mean square, float32 [rows, features].

    A standard deviation would say no more and take torch twenty times as long.
    """
    if hidden.dim() == 2:
        return hidden
    image = as_image(hidden)
    quarters = functional.adaptive_avg_pool2d(image, (2, 2)).flatten(1)
    return torch.cat([quarters, image.square().mean((2, 3)).sqrt()], 1)


class DistanceGate(nn.Module):
    """The distance of rows' summaries to the training data of a class, and its ``limit``.

    ``basis`` [features, rank] takes standardised features into the subspace; ``whitening``
    [rank, rank] makes the spread within a class 1 there; ``centres`` [classes, rank] are whitened.
    ``outside`` is 1 over the mean square of a feature outside of the subspace.
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
        """Return squared distances, float32 [rows], to the predicted ``classes``, int64 [rows]."""
        inside, outside = self._split(features)
        return (inside - self.centres[classes]).square().sum(1) + outside

    def relative(self, distances: torch.Tensor) -> torch.Tensor:
        """Return the logarithm of distances over the limit, float32 [rows].

        Above 0 a row is out of distribution.
        """
        return (distances / self.limit).clamp_min(1e-6).log()

    def _split(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return whitened coordinates in the subspace, and the weighted squares outside of it."""
        standard = (features - self.mean).mul_(self.scale)
        inside = standard @ self.basis
        rest = (_squares(standard) - _squares(inside)).clamp_min(0)
        return inside @ self.whitening, rest * self.outside

    @torch.no_grad()
    def fit(self, features: torch.Tensor, classes: torch.Tensor) -> None:
        """Fit to summaries of training data, [rows, features], and the base model's classes."""
        self.mean.copy_(features.mean(0))
        standard = features - self.mean
        variance = _mean_squares(standard)
        floor = 1e-6 * variance.mean().clamp_min(1e-12)
        self.scale.copy_((variance + floor).rsqrt())
        standard.mul_(self.scale)
        rank = self.basis.shape[1]
        directions = _main_directions(standard, self.basis)
        # Coarse steps keep rows from lying wholly in their subspace, which would leave only noise.
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
        """Return centres in the subspace before whitening, [classes, rank]; all data's is 0."""
        sums = torch.zeros_like(self.centres).index_add_(0, classes, inside)
        counts = torch.bincount(classes, minlength=len(sums)).unsqueeze(1)
        return sums / (counts + CENTRE_ROWS)

    @torch.no_grad()
    def set_limit(self, distances: torch.Tensor) -> None:
        """Set the limit that a share ``KEPT`` of held-out rows with these ``distances`` pass."""
        self.limit.copy_(torch.quantile(distances, KEPT))


def _squares(rows: torch.Tensor) -> torch.Tensor:
    """Return each row's sum of squares.

    Squares in a tensor of their own would take ten times as long: the kernel would have to find
    fresh pages for tens of megabytes.
    """
    return torch.linalg.vector_norm(rows, dim=1).square()


def _mean_squares(rows: torch.Tensor) -> torch.Tensor:
    """Return each column's mean square."""
    sums = [part.square().sum(0) for part in torch.split(rows, PART_ROWS)]
    return torch.stack(sums).sum(0) / len(rows)


def _main_directions(rows: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Return the orthonormal directions of greatest variance, [features, rank]; of more than
    ``EXACT_FEATURES`` features nearly these.

    ``before``: the directions of earlier data, from which one step of the power method leads to
    these; zeros if there is none.
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
