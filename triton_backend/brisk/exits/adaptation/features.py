"""The material of retraining: for each input the base model's answer and each exit's features.

Hidden outputs are large; a predictor is fine-tuned in its last layer, so only the input of that
layer and the gate's summary are kept of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from brisk.exits.base_model import BaseModel, run_in_batches
from brisk.exits.cascade import Cascade
from brisk.exits.guarantee.calibration import Scored, in_order
from brisk.exits.heads.distance_gate import summary
from brisk.exits.heads.exit_head import ExitHead, Predicted, decided
from brisk.exits.heads.exit_model import given
from brisk.exits.learning.exporting import network_of
from brisk.exits.learning.predictor import features_of, predict_features
from brisk.exits.model_graph import ExitPoint

LEAST_LOGIT = -1e30
"""Stands for minus infinity, the logarithm of a share that a whole model rounds to 0: a row whose
numbers are not all finite would be left out. Sums of it are finite."""


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """Rows of inputs as each exit sees them; float32."""

    features: tuple[torch.Tensor, ...]
    """The inputs of each exit's last layer, [rows, inputs] each."""
    summaries: tuple[torch.Tensor, ...]
    """The features of each exit's gate, [rows, features] each."""
    teacher: torch.Tensor
    """The base model's distribution, [rows, classes]."""

    def __len__(self) -> int:
        return len(self.teacher)

    @property
    def size_bytes(self) -> int:
        """The size of all rows together."""
        return sum(part.nbytes for part in (*self.features, *self.summaries, self.teacher))

    def finite_rows(self) -> list[bool]:
        """Return for each row whether all of it is finite: a NaN would spread to all weights."""
        parts = (*self.features, *self.summaries, self.teacher)
        sums = [part.flatten(1).double().sum(1).isfinite() for part in parts]
        is_finite: list[bool] = torch.stack(sums).all(0).tolist()
        return is_finite

    def take(self, rows: np.ndarray | Sequence[int]) -> Material:
        """Return the material of ``rows``."""
        chosen = torch.as_tensor(np.asarray(rows, np.int64))
        return Material(
            tuple(part[chosen] for part in self.features),
            tuple(part[chosen] for part in self.summaries),
            self.teacher[chosen],
        )


def joined(parts: Sequence[Material]) -> Material:
    """Return all rows, one part after the other. Precondition: at least one part."""
    exits = range(len(parts[0].features))
    return Material(
        tuple(torch.cat([part.features[index] for part in parts]) for index in exits),
        tuple(torch.cat([part.summaries[index] for part in parts]) for index in exits),
        torch.cat([part.teacher for part in parts]),
    )


def gather(base: BaseModel, cascade: Cascade, inputs: Mapping[str, np.ndarray]) -> Material:
    """Run the base model on the rows of ``inputs``. Precondition: it was loaded with ``taps_of``
    the cascade's points."""
    points = read_points(cascade)
    parts, start = [], 0
    for outputs, distribution in run_in_batches(base, points, cascade.scores, inputs):
        rows = slice(start, start := start + len(distribution))
        hidden = iter(outputs)
        features, summaries = [], []
        for exit_ in cascade.exits:
            if exit_.reads_input:
                batch = given(exit_.shape, {name: array[rows] for name, array in inputs.items()})
                logits = torch.tensor(exit_.evaluate(batch).logits)
                features.append(logits.masked_fill(logits == -torch.inf, LEAST_LOGIT))
                summaries.append(torch.zeros(len(distribution), 1))
                continue
            value = torch.tensor(next(hidden))
            with torch.no_grad():
                features.append(features_of(network_of(exit_).predictor, value).clone())
                summaries.append(summary(value).clone())
        parts.append(Material(tuple(features), tuple(summaries), torch.tensor(distribution)))
    return joined(parts)


def read_points(cascade: Cascade) -> list[ExitPoint]:
    """Return the points at which the model has to stop for its exits."""
    return [exit_.point for exit_ in cascade.exits if not exit_.reads_input]


def predicted(network: ExitHead, index: int, material: Material) -> Predicted:
    """Return the rows as predictor and gate of exit ``index`` see them; the gate may lack its
    limit."""
    features, summaries = material.features[index], material.summaries[index]
    return predict_features(network, features, summaries, material.teacher.argmax(1))


def look_at(networks: Sequence[ExitHead], material: Material) -> Scored:
    """Return the decisions of all exits, in order, about the rows of ``material``."""
    return in_order(
        [
            decided(network, predicted(network, index, material))
            for index, network in enumerate(networks)
        ]
    )
