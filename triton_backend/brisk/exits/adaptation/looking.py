"""Rows as the exits of a cascade see them: what thresholds are proposed and proved on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from brisk.exits.adaptation.material import Material
from brisk.exits.calibration import Looked, Scored, in_order
from brisk.exits.learning.last_layer import last_layer
from brisk.exits.lookup import LookUp


def look(network: LookUp, index: int, material: Material) -> Looked:
    """The rows through exit ``index`` alone."""
    with torch.no_grad():
        logits = last_layer(network.predictor)(material.features[index])
        score, near = network.decide(logits, material.summaries[index])
    right = logits.argmax(1) == material.teacher.argmax(1)
    return Looked(score.numpy(), right.numpy(), near.numpy())


def look_at(networks: Sequence[LookUp], material: Material) -> Scored:
    """The rows through all exits in order."""
    return in_order([look(network, index, material) for index, network in enumerate(networks)])


def together(parts: Sequence[Looked], order: np.ndarray) -> Looked:
    """Rows of several parts, one after the other, then in this order."""
    return Looked(
        np.concatenate([part.scores for part in parts])[order],
        np.concatenate([part.right for part in parts])[order],
        np.concatenate([part.near for part in parts])[order],
    )


def first_rows(looked: Looked, count: int) -> Looked:
    return Looked(looked.scores[:count], looked.right[:count], looked.near[:count])
