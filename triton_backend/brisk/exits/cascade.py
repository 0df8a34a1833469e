"""The caches of a model, ready to be looked up, with what is promised of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from brisk.exits.guarantee.calibration import CascadeCount
from brisk.exits.heads.lookup_model import Judge, LookUpModel, ReadyLookUp, Shape
from brisk.exits.model_graph import ExitPoint
from brisk.exits.scores import Scores

INT8 = "int8"
"""The variant that is the whole model, quantised; it reads the model's own input."""


@dataclass(frozen=True, slots=True, eq=False)
class Exit:
    """One learned cache. ``shape``: of the hidden output, without its rows.

    ``model``: the look-up as ONNX, ``look_up`` what asks it, made of it here: whoever changes
    weights makes another exit.
    ``lookup_s`` and ``memory_bytes`` as measured when it was trained; ``saved_s``: what an answer
    there saves of the model's time, on average; ``burden_s``: what a look-up costs it. One whose
    thresholds are all infinite is in reserve: adaptation may come to use it. ``threads``: that
    compute a look-up.
    ``noticed_at``: the value which the model makes when the lane has mostly found something; it
    stops behind that, too. None: there is no such place.

    Raises DamagedFileError where ``model`` is no look-up of so many ``classes`` in ``shape``.
    """

    point: ExitPoint
    variant: str
    shape: Shape
    classes: int
    model: bytes
    lookup_s: float
    memory_bytes: int
    saved_s: float = 0.0
    burden_s: float = 0.0
    noticed_at: str | None = None
    judge: Judge = Judge.SELECTOR
    threads: int = 1
    look_up: ReadyLookUp = field(init=False)

    def __post_init__(self) -> None:
        form = self.shape, self.classes, self.threads
        ready = LookUpModel(self.model, *form, is_whole=self.reads_input)
        object.__setattr__(self, "look_up", ready)

    @property
    def reads_input(self) -> bool:
        """Whether it looks at the model's own input, and so may stand in front of it all."""
        return self.variant == INT8

    @property
    def name(self) -> str:
        """``Pool(4096)@26``: the variant and the nodes of the model done when it is looked up;
        with what decides, where that is no selector: ``Pool(4096)-softmax@26``."""
        return f"{way(self.variant, self.judge)}@{self.point.position}"


def way(variant: str, judge: Judge) -> str:
    """What a variant is called with what decides about its answers."""
    return variant if judge is Judge.SELECTOR else f"{variant}-{judge.value}"


@dataclass(frozen=True, slots=True)
class Level:
    """Thresholds that keep ``accuracy``, in the order of the exits; infinite: never answers.

    ``count``: the held-out inputs that prove it.
    """

    accuracy: float
    thresholds: tuple[float, ...]
    count: CascadeCount


@dataclass(frozen=True, slots=True)
class Expected:
    """What composition expects: the base model's and the cascade's mean latency."""

    base_s: float
    mean_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Cascade:
    """``levels``: the promise that was asked for, then stricter ones, each at ``confidence``.

    ``exits`` in the order of their points. ``synchronous``: look-ups run in the model's own
    thread, where handing them over would take longer than they do. ``revision`` counts what
    adaptation has published; 0 is what was trained. ``repairs``: it takes the place of one that
    its traffic speaks against, also if it saves less.
    """

    model_digest: str
    scores: Scores
    exits: tuple[Exit, ...]
    levels: tuple[Level, ...]
    confidence: float
    expected: Expected
    synchronous: bool = False
    revision: int = 0
    repairs: bool = False

    @property
    def taps(self) -> tuple[str, ...]:
        """Values behind which the model has to stop: none for what lies in reserve."""
        found: dict[str, None] = {}
        for index, exit_ in enumerate(self.exits):
            is_used = any(math.isfinite(level.thresholds[index]) for level in self.levels)
            if is_used and exit_.point.position:
                found[exit_.point.value] = None
                if exit_.noticed_at is not None and not self.synchronous:
                    found[exit_.noticed_at] = None
        return tuple(found)

    def level(self, accuracy: float | None) -> Level | None:
        """The least strict one that keeps ``accuracy``; for None the first one."""
        if accuracy is None:
            return self.levels[0] if self.levels else None
        return next((level for level in self.levels if level.accuracy >= accuracy), None)
