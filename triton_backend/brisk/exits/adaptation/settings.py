"""How much is kept of the traffic, and how caches are trained again."""

from __future__ import annotations

from dataclasses import dataclass, field

from brisk.exits.learning.settings import PredictorSettings, SelectorSettings


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
