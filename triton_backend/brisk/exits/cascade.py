"""The exits of a model, ready to be evaluated, and the promise about them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from brisk.exits.files.learning_record import Aim
from brisk.exits.guarantee.calibration import CascadeCount
from brisk.exits.heads.exit_model import AnswerForm, ExitEvaluator, ExitModel, Judge, Shape
from brisk.exits.model_graph import ExitPoint, ModelGraph
from brisk.exits.scores import Scores, says_classes

INT8, SMALLER = "int8", "smaller"
"""The variants that are whole models, which read the model's own input: the model itself,
quantised, and a smaller one that the user names."""

WHOLE_MODELS = frozenset({INT8, SMALLER})


@dataclass(frozen=True, slots=True, eq=False)
class Exit:
    """One learned cache. If all its thresholds are infinite it is in reserve, for adaptation to
    use.

    Raises DamagedFileError if ``model`` is no exit that answers in ``form`` in ``shape``.
    """

    point: ExitPoint
    variant: str
    shape: Shape
    """The shape of the hidden output, without its rows."""
    form: AnswerForm
    model: bytes
    """The ONNX model that evaluates the exit. Other weights make another exit."""
    evaluation_s: float
    """The time of an evaluation, as measured in training."""
    memory_bytes: int
    """The memory that the exit takes, as determined in training."""
    saved_s: float = 0.0
    """The model's time that an answer saves, on average."""
    overhead_s: float = 0.0
    """The time by which an evaluation delays the model."""
    noticed_at: str | None = None
    """The value that the model makes when the exit thread has mostly ended an evaluation; the
    model stops behind that, too. None if there is no such value."""
    judge: Judge = Judge.SELECTOR
    threads: int = 1
    """The threads of an evaluation."""
    evaluate: ExitEvaluator = field(init=False)
    """``model``, ready to run."""

    def __post_init__(self) -> None:
        ready = ExitModel(
            self.model, self.shape, self.form, self.threads, is_whole=self.reads_input
        )
        object.__setattr__(self, "evaluate", ready)

    @property
    def reads_input(self) -> bool:
        """Whether the exit reads the model's own input, and so may stand before all its nodes."""
        return self.variant in WHOLE_MODELS

    @property
    def is_by_row(self) -> bool:
        """Whether it is run for each row: for several that may take longer than the model."""
        return isinstance(self.evaluate, ExitModel) and self.evaluate.is_by_row

    @property
    def name(self) -> str:
        """The name: variant and nodes of the model done when it is evaluated, as in
        ``Pool(4096)@26``; with the judge, if that is no selector: ``Pool(4096)-softmax@26``."""
        return f"{way(self.variant, self.judge)}@{self.point.position}"


def answer_form(scores: Scores) -> AnswerForm:
    """Return the form in which an exit answers with ``scores``: of classes [rows, classes]."""
    rank = 2 if scores.tolerance is None else scores.rank
    return AnswerForm(scores.classes, rank, len(scores.others))


def way(variant: str, judge: Judge) -> str:
    """Return the name of a variant with the judge of its answers."""
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
    """The mean latencies of the base model and of the cascade that composition expects."""

    base_s: float
    mean_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Cascade:
    """All exits of a model, with their promise."""

    model_digest: str
    scores: Scores
    exits: tuple[Exit, ...]
    """The exits in the order of their points."""
    levels: tuple[Level, ...]
    """The promise that was asked for, then stricter ones, each at ``confidence``."""
    confidence: float
    expected: Expected
    synchronous: bool = False
    """Whether exits are evaluated in the model's own thread, since handing them over would take
    longer."""
    revision: int = 0
    """The number of cascades that adaptation has published; 0 for one from training."""
    repairs: bool = False
    """Whether it replaces a version that recent traffic contradicts, even if it saves less."""
    trained_digest: str = ""
    """``digest_at_end`` of the file of trained caches that adaptation began with; empty: training
    has made it itself."""

    @property
    def taps(self) -> tuple[str, ...]:
        """The values behind which the model has to stop; none for exits in reserve."""
        names: dict[str, None] = {}
        for index, exit_ in enumerate(self.exits):
            is_used = any(math.isfinite(level.thresholds[index]) for level in self.levels)
            if is_used and exit_.point.position:
                names[exit_.point.value] = None
                if exit_.noticed_at is not None and not self.synchronous:
                    names[exit_.noticed_at] = None
        return tuple(names)

    def level(self, accuracy: float | None) -> Level | None:
        """Return the least strict level that keeps ``accuracy``, the first one for None."""
        if accuracy is None:
            return self.levels[0] if self.levels else None
        return next((level for level in self.levels if level.accuracy >= accuracy), None)


def is_asked_for(cascade: Cascade, graph: ModelGraph, aim: Aim) -> bool:
    """Whether ``cascade``, learned from the traffic of the model, is what an entry's ``aim`` asks
    for: of its tolerance, without a smaller model that it does not name, and of classes that are
    certain where the aim needs that."""
    is_same = str(cascade.scores.tolerance or "") == aim.tolerance
    has_smaller = any(exit_.variant == SMALLER for exit_ in cascade.exits)
    is_certain = not aim.needs_classes or says_classes(graph, cascade.scores)
    return is_same and is_certain and (bool(aim.smaller) or not has_smaller)
