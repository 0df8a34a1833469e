"""The whole way from a model file and samples to its caches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from brisk.errors import InvalidModelError
from brisk.exits.base_model import BaseModel, load_graph, taps_of
from brisk.exits.cascade import INT8, Cascade, Exit, Expected, Level
from brisk.exits.cascade_file import digest_of
from brisk.exits.data.collecting import (
    Collected,
    bind_rows,
    check_classes,
    check_rows,
    collect,
    settled_scores,
    with_rows,
)
from brisk.exits.data.outliers import KEPT as FOR_FLOORS
from brisk.exits.data.outliers import make_outliers
from brisk.exits.data.samples import Division, Samples, divide
from brisk.exits.exploration.composition import CompositionProblem, Tried, composition_problem
from brisk.exits.exploration.measuring import (
    BaseProfile,
    Between,
    LaneCost,
    Verification,
    lane_cost,
    look_up_seconds,
    profile_base,
    race,
)
from brisk.exits.exploration.selection import Chosen, decide, winner
from brisk.exits.exploration.settings import ExplorationSettings, LookUps, Progress
from brisk.exits.exploration.shortlist import Finalist
from brisk.exits.exploration.trial import METHOD, Trial, measure_trials, run_trials
from brisk.exits.exploration.whole_models import OUTLIERS, front, try_quantised
from brisk.exits.guarantee.calibration import CascadeCount, ExitCount
from brisk.exits.heads.lookup import LookUp, empty_look_up
from brisk.exits.heads.lookup_model import LookUpModel
from brisk.exits.heads.predictors import variant, weights_bytes
from brisk.exits.learning.exporting import export_look_up
from brisk.exits.learning.predictor import PredictorSettings
from brisk.exits.model_graph import ExitPoint, ModelGraph, exit_points, read_graph, spread
from brisk.exits.scores import Scores, find_scores


@dataclass(frozen=True, slots=True, eq=False)
class Studied:
    """What was measured of the model and of every trained variant: what cascades are made of.

    ``base`` stops at every explored point and at the scores. ``problems`` by whether look-ups are
    synchronous; ``cost`` and ``profile`` are what they were made with. ``boundaries``: points at
    which the model may stop, each with the seconds to there.
    """

    graph: ModelGraph
    base: BaseModel
    digest: str
    scores: Scores
    points: Sequence[ExitPoint]
    tried: Sequence[Tried]
    problems: Mapping[bool, CompositionProblem]
    cost: LaneCost
    profile: BaseProfile
    boundaries: Mapping[ExitPoint, float]
    settings: ExplorationSettings

    def of(self, chosen: Chosen) -> Cascade:
        """What is served."""
        return self._cascade(chosen.synchronous, chosen.tried, chosen.levels, chosen.latency_s)

    def unproved(self, finalist: Finalist) -> Cascade:
        """At thresholds that nothing has proved yet, to be timed."""
        nothing = CascadeCount(0, tuple(ExitCount(0, 0) for _ in finalist.chosen), 0)
        level = Level(self.settings.accuracy, finalist.thresholds, nothing)
        return self._cascade(finalist.synchronous, finalist.chosen, (level,), finalist.latency_s)

    def raced(
        self,
        whole: BaseModel,
        cascades: Sequence[Cascade],
        inputs: Sequence[Mapping[str, np.ndarray]],
    ) -> list[Verification]:
        """Each of them against the model."""
        threads, taps = self.settings.threads, dict.fromkeys(one.taps for one in cascades)
        models = {each: load_graph(self.graph, threads, each) for each in taps}
        return race(whole, [(models[one.taps], one) for one in cascades], inputs)

    def _cascade(
        self, synchronous: bool, chosen: Sequence[int], levels: tuple[Level, ...], mean_s: float
    ) -> Cascade:
        return Cascade(
            model_digest=self.digest,
            scores=self.scores,
            exits=tuple(self._exit(synchronous, index) for index in chosen),
            levels=levels,
            confidence=self.settings.confidence,
            expected=Expected(self.profile.total_s, mean_s),
            synchronous=synchronous,
        )

    def _exit(self, synchronous: bool, index: int) -> Exit:
        problem, one = self.problems[synchronous], self.tried[index]
        candidate, point = problem.candidates[index], self.points[one.point]
        end_s = problem.reach_s[one.point] + candidate.lookup_s
        threads = self.settings.threads if one.variant == INT8 else 1
        noticed = None if synchronous else noticed_at(point, candidate.lookup_s, self.boundaries)
        return Exit(
            point=point,
            variant=one.variant,
            shape=one.shape,
            classes=self.scores.classes,
            model=one.model,
            lookup_s=one.lookup_s,
            memory_bytes=one.memory_bytes,
            saved_s=max(0.0, problem.total_s - end_s),
            burden_s=candidate.burden_s,
            noticed_at=noticed,
            judge=one.judge,
            threads=threads,
        )


def noticed_at(
    point: ExitPoint, wait_s: float, boundaries: Mapping[ExitPoint, float]
) -> str | None:
    """The value of the first of ``boundaries``, which are in order, reached ``wait_s`` after
    ``point``; None: the end is."""
    ready_s = boundaries[point] + wait_s
    later = (other for other in boundaries if other.position > point.position)
    return next((other.value for other in later if boundaries[other] >= ready_s), None)


ROW_VISITS = 80_000
FEWEST_EPOCHS, MOST_EPOCHS = 4, 40
"""A predictor sees so many rows in all, within these numbers of epochs."""

RACED_ROWS = 320

KEPT = f"at-values-{METHOD}"
"""Folder of what an interrupted call left; that of another method has other rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Exploration:
    """``cascade`` is None where the model is better served without; ``reason`` says why.

    ``problem`` has every trained variant as measured; ``skipped`` counts those whose look-up alone
    is too slow or too large here, which were not trained.
    """

    cascade: Cascade | None
    reason: str
    problem: CompositionProblem
    chosen: tuple[int, ...]
    skipped: int
    verification: Verification | None
    label_agreement: float | None
    studied: Studied


def explore(
    model_file: Path,
    samples: Samples,
    folder: Path,
    settings: ExplorationSettings,
    more_to_fit: Samples | None = None,
    progress: Progress | None = None,
) -> Exploration:
    """Train, compose and calibrate. What an interrupted call left in ``folder`` is used again.

    ``samples`` are like what will be served; ``more_to_fit`` may be anything similar, it only fits
    predictors. Raises InvalidModelError where the model cannot have caches, InvalidRequestError
    where the samples do not fit it or are too few.
    """
    progress = progress or Progress()
    folder = folder / KEPT
    folder.mkdir(exist_ok=True)
    torch.set_num_threads(settings.threads)
    graph, threads = read_graph(model_file), settings.threads
    scores = find_scores(graph, settings.output)
    everywhere, points = _choose_points(graph, scores, settings.points)
    whole = load_graph(graph, threads)
    base = load_graph(graph, threads, taps_of(points, scores, graph))
    points = with_rows(base, points, samples)
    cut = load_graph(graph, threads, [point.value for point in points])
    newest = settings.proves_newest
    division = divide(samples, settings.seed, more_to_fit, proves_newest=newest)
    first = bind_rows(samples.take(slice(0, 1)))
    profile = profile_base(whole, cut, points, first)
    check_rows(base, points, scores, samples)
    scores = settled_scores(base, scores, samples)

    every, fit_rows = _write_rows(folder, samples, more_to_fit, division, settings.seed)
    progress.stage("running the base model", len(every))
    collected = collect(base, points, scores, every, folder, progress.advance)
    answers = collected.teacher[: len(samples)]
    check_classes(answers, scores, graph.name)
    trials, absence = _worthwhile(collected, points, profile, scores, folder, settings, fit_rows)
    progress.stage("training caches", len(trials))
    run_trials(trials, settings.jobs, progress.advance)

    progress.stage("measuring", len(trials))
    profile = profile_base(whole, cut, points, first)  # training may have taken hours
    between = Between(lambda: cut.run(first), profile.cut_s)
    every_point, judges = points, settings.judges
    tried = measure_trials(trials, points, collected, division, between, judges, progress)
    if INT8 in settings.variants and LookUps.ASYNCHRONOUS is not settings.look_ups:
        progress.stage("quantising", 1)
        found_whole = _try_quantised(
            *(graph, scores, samples, every, collected, division),
            *(folder, len(points), threads, between),
        )
        progress.advance()
        if not isinstance(found_whole, str):
            every_point = (front(graph), *points)
            behind = [dataclasses.replace(one, point=one.point + 1) for one in tried]
            tried = [*behind, *found_whole]
    stopping = load_graph(graph, threads, [point.value for point in everywhere])
    everywhere_s = profile_base(whole, stopping, everywhere, first).reach_s
    cost = LaneCost(0.0, 0.0)
    if tried:
        one = tried[0]
        exit_ = Exit(
            *(every_point[one.point], one.variant, one.shape, scores.classes),
            *(one.model, one.lookup_s, one.memory_bytes),
            judge=one.judge,
        )
        cost = lane_cost(stopping, scores, exit_, first)
    problems = {
        synchronous: composition_problem(tried, every_point, cost, profile, settings, synchronous)
        for synchronous in settings.look_ups.modes
    }
    boundaries = {point: everywhere_s[point.position] for point in everywhere}
    studied = Studied(
        *(graph, base, digest_of(model_file), scores, every_point, tried, problems),
        *(cost, profile, boundaries, settings),
    )
    rows = division.tune[:RACED_ROWS]
    inputs = [bind_rows(samples.take(slice(row, row + 1))) for row in rows]
    progress.stage("racing", 1)
    found = _choose(studied, whole, inputs) if tried else absence
    cascade, verification, reason = None, None, ""
    problem, chosen = next(iter(problems.values())), tuple[int, ...]()
    if isinstance(found, Chosen):
        problem, chosen = found.problem, found.tried
        cascade = studied.of(found)
        [verification] = studied.raced(whole, [cascade], inputs)
        if verification.cascade_s >= verification.base_s:
            cascade = None
            reason = (
                f"with its caches the model took {verification.cascade_s * 1e3:.2f} ms on "
                f"average, without {verification.base_s * 1e3:.2f} ms: it is better served without"
            )
    else:
        reason = found
    progress.advance()
    return Exploration(
        *(cascade, reason, problem, chosen),
        len(points) * len(settings.variants) - len(trials),
        verification,
        None if samples.labels is None else float((answers.argmax(1) == samples.labels).mean()),
        studied,
    )


def _choose(
    studied: Studied, whole: BaseModel, inputs: Sequence[Mapping[str, np.ndarray]]
) -> Chosen | str:
    """As ``decide`` says; a race on this machine names the fastest."""

    def fastest(entered: Sequence[Finalist]) -> Finalist:
        times = studied.raced(whole, [studied.unproved(one) for one in entered], inputs)
        return winner(list(zip(entered, times, strict=True)), studied.settings.miss_cost)

    return decide(studied.problems, studied.tried, studied.settings, fastest)


def _choose_points(
    graph: ModelGraph, scores: Scores, count: int
) -> tuple[tuple[ExitPoint, ...], tuple[ExitPoint, ...]]:
    """All points of the model, and ``count`` of them, spread over its predicted time."""
    points = exit_points(graph, scores.position)
    if not points:
        raise InvalidModelError(
            f"model '{graph.name}' has no boundary between nodes at which one float32 tensor "
            "with the batch as first dimension is all that is live: no cache fits in"
        )
    numbers = spread(points, [point.share for point in points], count)
    return points, tuple(points[number] for number in numbers)


def _write_rows(
    folder: Path, samples: Samples, more: Samples | None, division: Division, seed: int
) -> tuple[Samples, int]:
    """All rows to run, of which those that fit are so many: the samples, then more to fit on, then
    outliers. Which is for what is written for the trials."""
    if more is None or not len(division.more):
        outliers = make_outliers(samples.take(division.select), seed)
    else:
        outliers = make_outliers(more.take(division.more), seed, division.more_sources)
    parts = [samples, *([more] if more is not None else []), outliers.samples]
    every = Samples(
        {name: np.concatenate([part.inputs[name] for part in parts]) for name in samples.inputs}
    )
    fit = np.concatenate([division.fit, len(samples) + division.more])
    np.savez(
        folder / "rows.npz",
        fit=fit,
        select=division.select,
        outliers=np.arange(len(every) - len(outliers), len(every)),
        kinds=outliers.kinds,
        meant=outliers.meant,
    )
    return every, len(fit)


def _try_quantised(
    graph: ModelGraph,
    scores: Scores,
    samples: Samples,
    every: Samples,
    collected: Collected,
    division: Division,
    folder: Path,
    points: int,
    threads: int,
    between: Between,
) -> list[Tried] | str:
    """The model in int8, judged with the outliers of ``_write_rows``."""
    with np.load(folder / "rows.npz") as rows:
        is_kept = rows["meant"] == FOR_FLOORS
        some = slice(None, None, -(-int(is_kept.sum()) // OUTLIERS) or 1)  # of every kind
        chosen, kinds = rows["outliers"][is_kept][some], rows["kinds"][is_kept][some]
    classes = collected.teacher.argmax(1)
    outliers = every.take(chosen), kinds, classes[chosen]
    answers = classes[: len(samples)]
    form = points + 1, threads, between
    return try_quantised(graph, scores, samples, division, outliers, answers, *form)


def _worthwhile(
    collected: Collected,
    points: Sequence[ExitPoint],
    profile: BaseProfile,
    scores: Scores,
    folder: Path,
    settings: ExplorationSettings,
    fit_rows: int,
) -> tuple[list[Trial], str]:
    """The trials of variants whose look-up is over before the model is, and which fit in memory;
    in words why there are no others.

    An untrained network is as fast as a trained one, so the rest need not be trained
    (hardware-aware profiling, GATI A.2.1).
    """
    epochs = min(MOST_EPOCHS, max(FEWEST_EPOCHS, ROW_VISITS // max(fit_rows, 1)))
    predictor = settings.predictor or PredictorSettings(epochs=epochs)
    budget = math.inf if settings.memory_budget_bytes is None else settings.memory_budget_bytes
    trials = []
    too_large = too_slow = 0
    for index, point in enumerate(points):
        hidden = np.array(collected.hidden[index][:1])
        shape = tuple(hidden.shape[1:])
        left_s = profile.cut_s - profile.reach_s[point.position]
        for number, name in enumerate(settings.variants):
            if name == INT8:
                continue
            if not variant(name).applies(shape):
                continue
            network = empty_look_up(name, shape, scores.classes)
            if weights_bytes(network) > budget:
                too_large += 1
            elif not settings.trains_all and _untrained_s(network, hidden, scores) >= left_s:
                too_slow += 1
            else:
                seed = settings.seed + 1000 * index + number
                trials.append(
                    Trial(folder, point.position, name, predictor, settings.selector, seed)
                )
    absence = (
        f"of the variants at all points {too_large} are larger than the memory budget, "
        f"and the look-up of {too_slow} alone outlasts the model"
    )
    return trials, absence


def _untrained_s(network: LookUp, hidden: np.ndarray, scores: Scores) -> float:
    shape = tuple(hidden.shape[1:])
    model = export_look_up(network, shape, is_checked=False)
    return look_up_seconds(LookUpModel(model, shape, scores.classes), hidden)
