"""One cache trained again: last layer of the predictor, gate and selector (GATI, 5.3).

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
from brisk.exits.heads.lookup import (
    GatedLookUp,
    LookUp,
    Predicted,
    SelectedLookUp,
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
    """A copy of exit ``index``'s network, fitted anew, or itself where it is a whole model; the
    original is left as it is. And the rows
    of ``select``, each as judged by a selector that never saw it.

    A selector is sure of the rows that trained it: thresholds tuned on those promised what fresh
    rows then refuted. So each half of ``select`` is looked at with what the other half trained.
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
            strange.learned.features[index],
            settings.predictor,
            settings.seed,
        )
        if isinstance(changed, GatedLookUp):
            changed.gate.fit(fit.summaries[index], fit.teacher.argmax(1))
        rows, learned, kept = (
            predicted(changed, index, part) for part in (select, strange.learned, strange.kept)
        )
        kept = dataclasses.replace(kept, classes=strange.kinds)

        def selected(chosen: Predicted) -> LookUp:
            if not isinstance(changed, SelectedLookUp):
                own = copy.deepcopy(changed)
                if isinstance(own, GatedLookUp):
                    own.gate.set_limit(chosen.distances)
                if len(kept.classes):
                    own.set_floor(chosen, kept)
                return own.eval().requires_grad_(False)
            selector, gate = copy.deepcopy(changed.selector), copy.deepcopy(changed.gate)
            made = SelectedLookUp(changed.predictor, selector, gate)
            return fit_selection(made, chosen, learned, kept, settings.selector, settings.seed)

        odd, even = (np.arange(first, len(select), 2) for first in (1, 0))
        unseen = [
            decided(selected(rows.take(other)), rows.take(own))
            for own, other in ((even, odd), (odd, even))
        ]
        final = selected(rows)
    return final, joined(unseen).take(np.argsort(np.concatenate([even, odd])))
