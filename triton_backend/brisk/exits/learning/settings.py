"""How long and how hard caches are trained."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PredictorSettings:
    """``temperature`` and ``soft_share`` (0: cross-entropy alone) are the distillation's.

    ``exposure``: weight of the outliers' term, which asks for no opinion about them (Hendrycks
    and others, Deep Anomaly Detection with Outlier Exposure, ICLR 2019).
    """

    epochs: int = 10
    batch_rows: int = 128
    learning_rate: float = 4e-3
    weight_decay: float = 1e-2
    temperature: float = 2.0
    soft_share: float = 0.7
    exposure: float = 0.5


@dataclass(frozen=True, slots=True)
class SelectorSettings:
    """``false_hit_cost``: weight of a wrong prediction's row against a right one's.

    Of many rows the epochs are fewer: no more than ``row_visits`` in all.
    """

    epochs: int = 30
    batch_rows: int = 128
    learning_rate: float = 1e-2
    false_hit_cost: float = 4.0
    row_visits: int = 40_000
