"""The settings of an exploration, and the interface to which it reports its progress."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from brisk.errors import InvalidModelError
from brisk.exits.cascade import INT8
from brisk.exits.guarantee.calibration import Promise
from brisk.exits.heads.exit_model import GATED, Judge
from brisk.exits.heads.predictors import CATALOGUE
from brisk.exits.learning.predictor import PredictorSettings

STRICTER_LEVELS = (0.98, 0.99, 0.995)
"""The stricter promises that are calibrated, too, so that a request can ask for more."""


class EvaluationMode(str, Enum):
    """The thread that evaluates exits: the exit thread, the model's, or the better one."""

    ASYNCHRONOUS = "asynchronous"
    SYNCHRONOUS = "synchronous"
    AUTOMATIC = "automatic"

    @property
    def modes(self) -> tuple[bool, ...]:
        """The modes that may be chosen: True for synchronous evaluation."""
        return {"asynchronous": (False,), "synchronous": (True,)}.get(self.value, (False, True))


@dataclass(frozen=True, slots=True)
class ExplorationSettings:
    """The promise, the search for caches, and its limits."""

    accuracy: float = 0.97
    """The promised accuracy."""
    confidence: float = 0.95
    """The confidence with which it is promised."""
    memory_budget_bytes: int | None = None
    """The most memory of all caches together; None: no limit."""
    miss_cost: float | None = 0.02
    """Latency overhead allowed for an input that every cache misses, as a share of the model's
    time, if caches can keep to it; None: the mean alone counts."""
    points: int = 8
    """The most exit points that are explored."""
    variants: tuple[str, ...] = (*(variant.name for variant in CATALOGUE), INT8)
    smaller: Path | None = None
    """The file of a smaller model, which is a further variant."""
    jobs: int = 1
    """Variants trained at once, one thread each."""
    threads: int = 1
    """Threads of the base model while it is measured."""
    seed: int = 0
    output: str | None = None
    """The model's output that has the class scores; None: it is found."""
    needs_classes: bool = False
    """Whether only scores are taken that are certain to be of classes (``Scores.is_certain``)."""
    evaluation_mode: EvaluationMode = EvaluationMode.AUTOMATIC
    predictor: PredictorSettings | None = None
    trains_all: bool = False
    """Whether variants whose evaluation alone outlasts the model are trained and measured, too."""
    proves_newest: bool = False
    """Whether samples are in order of time and the newest ones prove (``divide``)."""
    judges: tuple[Judge, ...] = GATED
    """The judges that may decide about the variants' answers."""
    hidden_bytes: int | None = None
    """The most room on disk for hidden values, for which the points of the largest are left out;
    None: no limit."""

    @property
    def promise(self) -> Promise:
        return Promise(self.accuracy, self.confidence)

    @property
    def stricter(self) -> tuple[Promise, ...]:
        """Stricter promises that a request may ask for instead."""
        return tuple(
            Promise(accuracy, self.confidence)
            for accuracy in STRICTER_LEVELS
            if accuracy > self.accuracy
        )


class TooLargeError(InvalidModelError):
    """The hidden values of every point take more room than allowed."""


class Progress:
    """The progress of an exploration, stage after stage; this one reports nothing."""

    def stage(self, name: str, total: int) -> None:
        """Begin a stage of ``total`` units."""

    def advance(self, units: int = 1) -> None:
        """Report that so many units of the stage are done."""
