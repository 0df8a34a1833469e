"""What an exploration is asked for, and whom it tells how far it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from brisk.exits.cascade import INT8
from brisk.exits.guarantee.calibration import Promise
from brisk.exits.heads.lookup_model import GATED, Judge
from brisk.exits.heads.predictors import CATALOGUE
from brisk.exits.learning.predictor import PredictorSettings
from brisk.exits.learning.selection import SelectorSettings

STRICTER_LEVELS = (0.98, 0.99, 0.995)
"""Promises calibrated besides the one asked for, so that a request can ask for more."""


class LookUps(str, Enum):
    """Where look-ups run: in a lane of their own, in the model's thread, or as composition finds.

    ``modes``: whether synchronous, of each that may be chosen.
    """

    ASYNCHRONOUS = "asynchronous"
    SYNCHRONOUS = "synchronous"
    AUTOMATIC = "automatic"

    @property
    def modes(self) -> tuple[bool, ...]:
        return {"asynchronous": (False,), "synchronous": (True,)}.get(self.value, (False, True))


@dataclass(frozen=True, slots=True)
class ExplorationSettings:
    """``accuracy`` is promised with ``confidence``. ``points``: at most so many exit points.

    ``miss_cost``: share of the model's time by which an input that every cache misses may be late,
    where caches can keep to it; None: the mean alone counts.
    ``memory_budget_bytes``: of all caches together; None for none. ``jobs``: variants trained at
    once, one thread each. ``threads``: of the base model while it is measured. ``trains_all``:
    variants whose look-up alone outlasts the model, too, to measure them. ``judges``: what may
    decide about their answers. ``proves_newest``: as ``divide``.
    """

    accuracy: float = 0.97
    confidence: float = 0.95
    memory_budget_bytes: int | None = None
    miss_cost: float | None = 0.02
    points: int = 8
    variants: tuple[str, ...] = (*(variant.name for variant in CATALOGUE), INT8)
    jobs: int = 1
    threads: int = 1
    seed: int = 0
    output: str | None = None
    look_ups: LookUps = LookUps.AUTOMATIC
    predictor: PredictorSettings | None = None
    trains_all: bool = False
    proves_newest: bool = False
    judges: tuple[Judge, ...] = GATED
    selector: SelectorSettings = field(default_factory=SelectorSettings)

    @property
    def promise(self) -> Promise:
        return Promise(self.accuracy, self.confidence)

    @property
    def stricter(self) -> tuple[Promise, ...]:
        """That a request may ask for instead."""
        return tuple(
            Promise(accuracy, self.confidence)
            for accuracy in STRICTER_LEVELS
            if accuracy > self.accuracy
        )


class Progress:
    """Told of stages one after the other; tells nobody."""

    def stage(self, name: str, total: int) -> None:
        """A stage of ``total`` units begins."""

    def advance(self, units: int = 1) -> None:
        """So many units of the stage are done."""
