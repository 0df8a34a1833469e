"""Retraining of one cache: last layer of the predictor, gate and selector (GATI, section 5.3).

The paper retrains whole networks on GPUs. Here the convolution or hidden layer in front stays as
it was first trained, and the last layer, which for the pooling variants is the whole predictor, is
fitted to features that are computed once for each sample: on one core of a CPU that takes a tenth
of a second where the whole network takes several.
"""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field

import numpy as np
import torch

from brisk.exits.adaptation.features import Material, predicted
from brisk.exits.guarantee.calibration import Scored, joined
from brisk.exits.heads.exit_head import (
    ExitHead,
    GatedHead,
    Predicted,
    SelectedHead,
    decided,
)
from brisk.exits.learning.predictor import (
    PredictorSettings,
    fit_last_layer,
    last_layer,
)
from brisk.exits.learning.selection import SelectorSettings, fit_selection


@dataclass(frozen=True, slots=True)
class AdaptationSettings:
    """The window of samples, and how caches are trained on it."""

    window_rows: int = 4000
    """The most rows of the traffic that are kept."""
    window_bytes: int = 256 << 20
    """The most memory of these rows: of what exits see of them, and of ``fresh_bytes``."""
    fresh_bytes: int = 32 << 20
    """The inputs in memory at which the base model runs on them, whose bytes are given up then."""
    half_life_s: float = 120.0
    """The age at which a sample counts half as much as a new one."""
    fit_rows: int = 1800
    """The most rows of recent traffic that fit predictors."""
    original_share: float = 0.25
    """The share of the original data in the rows of a retraining (GATI, section 5.3)."""
    fewest_distinct: int = 100
    """The fewest different samples from which anything is learned."""
    predictor: PredictorSettings = field(
        default_factory=lambda: PredictorSettings(epochs=14, learning_rate=6e-3, exposure=0.2)
    )
    selector: SelectorSettings = field(default_factory=lambda: SelectorSettings(epochs=12))
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class OutOfDistribution:
    """The material of outliers."""

    for_learning: Material
    """Outliers for the predictor and the selector."""
    for_floor: Material
    """Outliers for the floor."""
    floor_kinds: torch.Tensor
    """The kind of each row of ``for_floor``, int64 [rows]."""


def retrain(
    network: ExitHead,
    index: int,
    fit: Material,
    select: Material,
    outliers: OutOfDistribution,
    settings: AdaptationSettings,
) -> tuple[ExitHead, Scored]:
    """Return exit ``index``'s network fitted anew, and the rows of ``select``, each as judged by a
    selector that never saw it.

    The network is a copy, or itself if it is a whole model. A selector is sure of the rows that
    trained it: thresholds tuned on those promised what fresh rows then refuted. So each half of
    ``select`` is judged by what the other half trained.
    """
    if network.is_whole:
        return network, decided(network, predicted(network, index, select))
    changed = copy.deepcopy(network).requires_grad_(True)
    with (
        torch.random.fork_rng(devices=[]),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        torch.manual_seed(settings.seed)
        fit_last_layer(
            last_layer(changed.predictor),
            fit.features[index],
            fit.teacher,
            outliers.for_learning.features[index],
            settings.predictor,
            settings.seed,
        )
        if isinstance(changed, GatedHead):
            changed.gate.fit(fit.summaries[index], fit.teacher.argmax(1))
        rows, for_learning, for_floor = (
            predicted(changed, index, part)
            for part in (select, outliers.for_learning, outliers.for_floor)
        )
        for_floor = dataclasses.replace(for_floor, classes=outliers.floor_kinds)

        def selected(chosen: Predicted) -> ExitHead:
            return _with_selection(changed, chosen, for_learning, for_floor, settings)

        odd, even = (np.arange(first, len(select), 2) for first in (1, 0))
        unseen = [
            decided(selected(rows.take(other)), rows.take(own))
            for own, other in ((even, odd), (odd, even))
        ]
        final = selected(rows)
    return final, joined(unseen).take(np.argsort(np.concatenate([even, odd])))


def _with_selection(
    network: ExitHead,
    rows: Predicted,
    for_selector: Predicted,
    for_floor: Predicted,
    settings: AdaptationSettings,
) -> ExitHead:
    """Return a copy of ``network`` whose gate's limit, selector and floor are fitted to ``rows``;
    it shares a selected network's predictor."""
    if isinstance(network, SelectedHead):
        selector, gate = copy.deepcopy(network.selector), copy.deepcopy(network.gate)
        selected = SelectedHead(network.predictor, selector, gate)
        return fit_selection(
            selected, rows, for_selector, for_floor, settings.selector, settings.seed
        )
    other = copy.deepcopy(network)
    if isinstance(other, GatedHead):
        other.gate.set_limit(rows.distances)
    if len(for_floor.classes):
        other.set_floor(rows, for_floor)
    return other.eval().requires_grad_(False)
