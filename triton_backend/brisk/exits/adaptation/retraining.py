"""One cache trained again: last layer of the predictor, gate and selector (GATI, 5.3).

The paper retrains whole networks for five epochs on GPUs. Here the convolution or hidden layer in
front stays as it was first trained, and the last layer, which for the pooling variants is the
whole predictor, is fitted to features that are computed once for each sample: on one core of a
CPU that takes a tenth of a second where the whole network takes several.
"""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field

import numpy as np
import torch

from brisk.exits.adaptation.features import Material, Predicted, decided, predicted
from brisk.exits.guarantee.calibration import Scored, joined
from brisk.exits.heads.lookup import LookUp
from brisk.exits.learning.predictor import (
    PredictorSettings,
    fit_last_layer,
    last_layer,
)
from brisk.exits.learning.selection import NO_CLASS, SelectorSettings, fit_selection


@dataclass(frozen=True, slots=True)
class AdaptationSettings:
    """``window_rows`` and ``window_bytes``: what is kept of the traffic, at most. ``half_life_s``:
    a sample of that age counts half as much as a new one. ``original_share``: of the rows that a
    retraining sees, so many are of the data that the caches were first trained with (GATI, 5.3).
    ``fewest_distinct``: without so many different samples nothing is learned.
    """

    window_rows: int = 4000
    window_bytes: int = 64 << 20
    half_life_s: float = 120.0
    fit_rows: int = 1800
    original_share: float = 0.25
    fewest_distinct: int = 100
    predictor: PredictorSettings = field(
        default_factory=lambda: PredictorSettings(epochs=14, learning_rate=6e-3, exposure=0.2)
    )
    selector: SelectorSettings = field(default_factory=lambda: SelectorSettings(epochs=12))
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Strange:
    """Outliers: for the predictor and selector, and, of ``kinds``, for the floor."""

    learned: Material
    kept: Material
    kinds: torch.Tensor


def retrain(
    network: LookUp,
    index: int,
    fit: Material,
    select: Material,
    strange: Strange,
    settings: AdaptationSettings,
) -> tuple[LookUp, Scored]:
    """A copy of exit ``index``'s network, fitted anew; the original is left as it is. And the rows
    of ``select``, each as judged by a selector that never saw it.

    A selector is sure of the rows that trained it: thresholds tuned on those promised what fresh
    rows then refuted. So each half of ``select`` is looked at with what the other half trained.
    """
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
            strange.learned.features[index],
            settings.predictor,
            settings.seed,
        )
        changed.gate.fit(fit.summaries[index], fit.teacher.argmax(1))
        rows, learned, kept = (
            predicted(changed, index, part) for part in (select, strange.learned, strange.kept)
        )
        learned = dataclasses.replace(learned, classes=torch.full_like(learned.classes, NO_CLASS))
        halves = [np.arange(first, len(select), 2) for first in range(2)]
        seen = [
            _selected(changed, rows.take(other), learned, kept, strange.kinds, settings)
            for other in reversed(halves)
        ]
        unseen = [
            decided(half, rows.take(chosen)) for half, chosen in zip(seen, halves, strict=True)
        ]
        order = np.argsort(np.concatenate(halves))
        final = _selected(changed, rows, learned, kept, strange.kinds, settings)
    return final, joined(unseen).take(order)


def _selected(
    network: LookUp,
    rows: Predicted,
    learned: Predicted,
    kept: Predicted,
    kinds: torch.Tensor,
    settings: AdaptationSettings,
) -> LookUp:
    """Another one of the same predictor, with gate, selector and floor fitted to ``rows``.

    ``learned`` and ``kept`` are outliers, as in ``Strange``.
    """
    selector, gate = copy.deepcopy(network.selector), copy.deepcopy(network.gate)
    changed = LookUp(network.predictor, selector, gate)
    doubted = fit_selection(
        changed,
        torch.cat([rows.logits, learned.logits]),
        torch.cat([rows.distances, learned.distances]),
        torch.cat([rows.classes, learned.classes]),
        settings.selector,
        settings.seed,
    )
    if len(kinds):
        changed.set_floor(kept.logits, kept.distances, kinds, doubted)
    return changed.eval().requires_grad_(False)
