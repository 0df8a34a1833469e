"""Rows as the exits of a cascade see them: what thresholds are proposed and proved on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from brisk.exits.adaptation.features import Material
from brisk.exits.guarantee.calibration import Looked, Scored, in_order
from brisk.exits.heads.lookup import LookUp
from brisk.exits.learning.last_layer import last_layer


def look(network: LookUp, index: int, material: Material) -> Looked:
    """The rows through exit ``index`` alone."""
    return decided(network, predicted(network, index, material))


@dataclass(frozen=True, slots=True, eq=False)
class Predicted:
    """Rows that a predictor has seen, its selector has not: ``logits`` [rows, classes],
    the gate's ``distances`` float32 [rows], the base model's ``classes`` int64 [rows]."""

    logits: torch.Tensor
    distances: torch.Tensor
    classes: torch.Tensor

    def take(self, rows: np.ndarray) -> Predicted:
        chosen = torch.from_numpy(rows)
        return Predicted(self.logits[chosen], self.distances[chosen], self.classes[chosen])


def predicted(network: LookUp, index: int, material: Material) -> Predicted:
    """The rows as predictor and gate of exit ``index`` see them; the gate may lack its limit."""
    with torch.no_grad():
        logits = last_layer(network.predictor)(material.features[index])
        distances = network.gate.distance(material.summaries[index], logits.argmax(1))
    return Predicted(logits, distances, material.teacher.argmax(1))


def decided(network: LookUp, rows: Predicted) -> Looked:
    """What selector and gate of ``network`` make of rows that its predictor has seen."""
    with torch.no_grad():
        score, near = network.decide(rows.logits, rows.distances)
    return Looked(score.numpy(), (rows.logits.argmax(1) == rows.classes).numpy(), near.numpy())


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
