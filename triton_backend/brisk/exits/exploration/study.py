"""The measurements of a model and its variants, of which cascades are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from brisk.exits.base_model import BaseModel, load_graph
from brisk.exits.cascade import WHOLE_MODELS, Cascade, Exit, Expected, Level, answer_form
from brisk.exits.data.collecting import Collected, Reduce, bind_rows
from brisk.exits.data.outliers import FOR_FLOOR
from brisk.exits.data.samples import Division, Samples
from brisk.exits.exploration.composition import CompositionProblem, Tried, composition_problem
from brisk.exits.exploration.measuring import (
    BaseProfile,
    Between,
    EvaluationCost,
    Verification,
    benchmark,
    evaluation_cost,
    profile_base,
)
from brisk.exits.exploration.selection import Chosen
from brisk.exits.exploration.settings import EvaluationMode, ExplorationSettings, Progress
from brisk.exits.exploration.shortlist import CandidateCascade
from brisk.exits.exploration.trial import Trial, measure_trials
from brisk.exits.exploration.whole_models import (
    OUTLIERS,
    LabelledOutliers,
    approximate_models,
    front,
    try_whole,
)
from brisk.exits.guarantee.calibration import CascadeCount, ExitCount
from brisk.exits.learning.quantising import CALIBRATED_ROWS
from brisk.exits.model_graph import ExitPoint, ModelGraph, readable
from brisk.exits.scores import Scores, classes_of

Inputs = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True, eq=False)
class ExploredModel:
    """The explored model, in the forms in which it is run."""

    graph: ModelGraph
    digest: str
    """``digest_of`` its file, in the state in which it was loaded."""
    scores: Scores
    boundaries: tuple[ExitPoint, ...]
    """All points at which the model may stop."""
    points: tuple[ExitPoint, ...]
    """The points that are explored."""
    whole: BaseModel
    """The model without stops."""
    base: BaseModel
    """The model with stops at the points and the scores."""
    cut: BaseModel
    """The model with stops at the points."""
    reductions: Mapping[str, Reduce | None]
    """The points whose hidden outputs are not stored, by the names of their values
    (``with_room``)."""


@dataclass(frozen=True, slots=True, eq=False)
class ExploredData:
    """The samples, their uses, and the base model's outputs for them."""

    samples: Samples
    outliers: Samples
    collected: Collected
    """The hidden outputs and answers of all rows that were run, the samples first, the outliers
    last."""
    division: Division
    folder: Path

    @property
    def rows_file(self) -> Path:
        """The file with the use of each row that was run."""
        return self.folder / "rows.npz"

    @property
    def first(self) -> dict[str, np.ndarray]:
        """The inputs by which the model is timed."""
        return bind_rows(self.samples.take(slice(0, 1)))


@dataclass(frozen=True, slots=True, eq=False)
class Studied:
    """The measurements of a model and of every trained variant, of which cascades are made."""

    model: ExploredModel
    points: Sequence[ExitPoint]
    """The points of ``tried``: those of the model, behind the one in front of it if whole models
    were tried."""
    tried: Sequence[Tried]
    problems: Mapping[bool, CompositionProblem]
    """The composition problems by mode, True for synchronous evaluation."""
    cost: EvaluationCost
    """The costs that ``problems`` were made with."""
    profile: BaseProfile
    """The times that ``problems`` were made with."""
    boundaries: Mapping[ExitPoint, float]
    """Points at which the model may stop, in order, each with the seconds to there."""
    settings: ExplorationSettings

    def of(self, chosen: Chosen) -> Cascade:
        """Return the chosen cascade as it is served."""
        return self._cascade(chosen.synchronous, chosen.tried, chosen.levels, chosen.latency_s)

    def unproved(self, candidate: CandidateCascade) -> Cascade:
        """Return the candidate at thresholds that nothing has proved yet, to be timed."""
        nothing = CascadeCount(0, tuple(ExitCount(0, 0) for _ in candidate.chosen), 0)
        level = Level(self.settings.accuracy, candidate.thresholds, nothing)
        return self._cascade(
            candidate.synchronous, candidate.chosen, (level,), candidate.latency_s
        )

    def benchmarked(
        self, cascades: Sequence[Cascade], inputs: Sequence[Inputs]
    ) -> list[Verification]:
        """Benchmark each of ``cascades`` against the model; return the results."""
        threads, taps = self.settings.threads, dict.fromkeys(one.taps for one in cascades)
        models = {each: load_graph(self.model.graph, threads, each) for each in taps}
        sides = [(models[one.taps], one) for one in cascades]
        return benchmark(self.model.whole, sides, inputs)

    def _cascade(
        self, synchronous: bool, chosen: Sequence[int], levels: tuple[Level, ...], mean_s: float
    ) -> Cascade:
        return Cascade(
            model_digest=self.model.digest,
            scores=self.model.scores,
            exits=tuple(self._exit(synchronous, index) for index in chosen),
            levels=levels,
            confidence=self.settings.confidence,
            expected=Expected(self.profile.total_s, mean_s),
            synchronous=synchronous,
        )

    def _exit(self, synchronous: bool, index: int) -> Exit:
        problem, one = self.problems[synchronous], self.tried[index]
        candidate, point = problem.candidates[index], self.points[one.point]
        threads = self.settings.threads if one.variant in WHOLE_MODELS else 1
        noticed = (
            None if synchronous else noticed_at(point, candidate.evaluation_s, self.boundaries)
        )
        return Exit(
            point=point,
            variant=one.variant,
            shape=one.shape,
            form=answer_form(self.model.scores),
            model=one.model,
            evaluation_s=one.evaluation_s,
            memory_bytes=one.memory_bytes,
            saved_s=max(
                0.0, problem.total_s - (problem.reach_s[one.point] + candidate.evaluation_s)
            ),
            overhead_s=candidate.overhead_s,
            noticed_at=noticed,
            judge=one.judge,
            threads=threads,
        )


def noticed_at(
    point: ExitPoint, wait_s: float, boundaries: Mapping[ExitPoint, float]
) -> str | None:
    """Return the value of the first of ``boundaries``, which are in order, that is reached
    ``wait_s`` after ``point``; None: the end is reached first."""
    ready_s = boundaries[point] + wait_s
    later = (other for other in boundaries if other.position > point.position)
    return next((other.value for other in later if boundaries[other] >= ready_s), None)


def study(
    model: ExploredModel,
    data: ExploredData,
    trials: Sequence[Trial],
    settings: ExplorationSettings,
    progress: Progress,
) -> Studied:
    """Measure the trained variants, approximate models, and their costs.

    Raises InvalidModelError if the smaller model of the settings cannot answer for this one.
    """
    progress.stage("measuring", len(trials))
    first = data.first
    # Timed again: training may have taken hours.
    profile = profile_base(model.whole, model.cut, model.points, first)
    between = Between(lambda: model.cut.run(first), profile.cut_s)
    tried = measure_trials(
        trials,
        model.points,
        data.collected,
        data.division,
        between=between,
        judges=settings.judges,
        progress=progress,
    )
    points: Sequence[ExitPoint] = model.points
    if EvaluationMode.ASYNCHRONOUS is not settings.evaluation_mode:
        progress.stage("quantising", 1)
        whole = _try_whole_models(model, data, settings, between)
        progress.advance()
        if whole:
            points = (front(model.graph), *points)
            behind = [dataclasses.replace(one, point=one.point + 1) for one in tried]
            tried = [*behind, *whole]
    stopping = load_graph(
        model.graph, settings.threads, [point.value for point in model.boundaries]
    )
    reach_s = profile_base(model.whole, stopping, model.boundaries, first).reach_s
    cost = _cost_of_first(tried, points, model.scores, stopping, first)
    problems = {
        synchronous: composition_problem(tried, points, cost, profile, settings, synchronous)
        for synchronous in settings.evaluation_mode.modes
    }
    return Studied(
        model=model,
        points=points,
        tried=tried,
        problems=problems,
        cost=cost,
        profile=profile,
        boundaries={point: reach_s[point.position] for point in model.boundaries},
        settings=settings,
    )


def _cost_of_first(
    tried: Sequence[Tried],
    points: Sequence[ExitPoint],
    scores: Scores,
    stopping: BaseModel,
    inputs: Inputs,
) -> EvaluationCost:
    """Return the costs of evaluations, measured with the first variant that was tried."""
    if not tried:
        return EvaluationCost(0.0, 0.0)
    one = tried[0]
    exit_ = Exit(
        point=points[one.point],
        variant=one.variant,
        shape=one.shape,
        form=answer_form(scores),
        model=one.model,
        evaluation_s=one.evaluation_s,
        memory_bytes=one.memory_bytes,
        judge=one.judge,
    )
    return evaluation_cost(stopping, scores, exit_, inputs)


def _try_whole_models(
    model: ExploredModel, data: ExploredData, settings: ExplorationSettings, between: Between
) -> list[Tried]:
    """Return the approximate models at every point, judged with the outliers of the rows' file.

    None if the model reads something else than one float32 tensor of fixed rows.
    """
    if readable(model.graph) is None:
        return []
    fit = data.samples.take(data.division.fit[:CALIBRATED_ROWS])
    found, _ = approximate_models(model.graph, model.scores, fit, settings, data.folder)
    if not found:
        return []
    with np.load(data.rows_file) as rows:
        is_for_floor = rows["meant"] == FOR_FLOOR
        some = slice(None, None, -(-int(is_for_floor.sum()) // OUTLIERS) or 1)  # of every kind
        chosen, kinds = rows["outliers"][is_for_floor][some], rows["kinds"][is_for_floor][some]
    classes = classes_of(data.collected.teacher)
    taken = data.outliers.take(chosen - (len(classes) - len(data.outliers)))
    outliers = LabelledOutliers(taken, kinds, classes[chosen])
    return [
        tried
        for approximate in found
        for tried in try_whole(
            approximate,
            data.samples,
            data.division,
            answers=classes[: len(data.samples)],
            outliers=outliers,
            points=len(model.points) + 1,
            threads=settings.threads,
            between=between,
        )
    ]
