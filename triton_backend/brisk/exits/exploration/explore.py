"""The whole way from a model file and samples to its caches."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from brisk.errors import InvalidModelError
from brisk.exits.base_model import BaseModel, load_graph, taps_of
from brisk.exits.cascade import Cascade
from brisk.exits.composition import CompositionProblem
from brisk.exits.data.collecting import Collected, bind_rows, collect, hidden_and_scores
from brisk.exits.data.outliers import make_outliers
from brisk.exits.data.samples import Division, Samples, divide
from brisk.exits.exploration.assembly import Assembly
from brisk.exits.exploration.measuring.evaluation import Evaluation
from brisk.exits.exploration.measuring.lane_profile import lane_cost
from brisk.exits.exploration.measuring.profile import BaseProfile, look_up_seconds, profile_base
from brisk.exits.exploration.measuring.race import Verification
from brisk.exits.exploration.problem import LaneCost, composition_problem
from brisk.exits.exploration.selection import Chosen, decide, winner
from brisk.exits.exploration.settings import ExplorationSettings, Progress, Silent
from brisk.exits.exploration.shortlist import Finalist
from brisk.exits.exploration.trial import Trial, run_trials
from brisk.exits.files.artefact import digest_of
from brisk.exits.heads.building import empty_look_up
from brisk.exits.heads.lookup import LookUp
from brisk.exits.heads.lookup_model import LookUpModel
from brisk.exits.learning.exporting import export_look_up
from brisk.exits.learning.settings import PredictorSettings
from brisk.exits.model_graph import ModelGraph, read_graph
from brisk.exits.points import ExitPoint, exit_points, spread
from brisk.exits.scores import Scores, find_scores
from brisk.exits.variants import variant, weights_bytes

ROW_VISITS = 80_000
FEWEST_EPOCHS, MOST_EPOCHS = 4, 40
"""A predictor sees so many rows in all, within these numbers of epochs."""

RACED_ROWS = 320


@dataclass(frozen=True, slots=True, eq=False)
class Studied:
    """What was measured of the model and of every trained variant: what composition starts from.

    ``cost`` as ``composition_problem`` takes it. ``base`` stops at every explored point and at
    the scores.
    """

    assembly: Assembly
    cost: LaneCost
    profile: BaseProfile
    base: BaseModel


KEPT = "at-values"
"""Folder of what an interrupted call left: exits stand at values of the model's graph."""


@dataclass(frozen=True, slots=True, eq=False)
class Exploration:
    """``cascade`` is None where the model is better served without; ``reason`` says why.

    ``problem`` has every trained variant as measured; ``skipped`` counts those whose look-up alone
    is too slow or too large here, which were not trained.
    """

    cascade: Cascade | None
    reason: str
    problem: CompositionProblem
    points: tuple[ExitPoint, ...]
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
    progress = progress or Silent()
    folder = folder / KEPT  # earlier versions left files of the same names, of other positions
    folder.mkdir(exist_ok=True)
    torch.set_num_threads(settings.threads)
    graph, threads = read_graph(model_file), settings.threads
    scores = find_scores(graph, settings.output)
    whole = load_graph(graph, threads)
    division = divide(samples, settings.seed, more_to_fit)
    every = _everything(samples, more_to_fit, division, settings.seed)
    first = bind_rows(samples.take(slice(0, 1)))
    points = _choose_points(graph, scores, folder, settings)
    base = load_graph(graph, threads, taps_of(points, scores, graph))
    cut = load_graph(graph, threads, [point.value for point in points])
    profile = profile_base(whole, cut, points, first)
    check_rows(base, points, scores, samples)

    progress.stage("running the base model", len(every.samples))
    collected = collect(base, points, scores, every.samples, folder, progress.advance)
    check_classes(collected.teacher[: len(samples)], scores, graph.name)
    np.savez(
        folder / "rows.npz",
        fit=every.fit,
        select=division.select,
        outliers=every.outliers,
        kinds=every.kinds,
        meant=every.meant,
    )
    worthwhile = _worthwhile(collected, points, profile, scores, folder, settings, len(every.fit))
    trials = worthwhile.trials
    skipped = len(points) * len(settings.variants) - len(trials)
    progress.stage("training caches", len(trials))
    run_trials(trials, settings.jobs, progress.advance)

    progress.stage("measuring", len(trials))
    profile = profile_base(whole, cut, points, first)  # training may have taken hours
    explorer = Evaluation(cut, points, scores, collected, division, first, profile.cut_s)
    tried = explorer.try_all(trials, progress)
    everywhere = exit_points(graph, scores.position)
    stopping = load_graph(graph, threads, [point.value for point in everywhere])
    everywhere_s = profile_base(whole, stopping, everywhere, first).reach_s
    cost = LaneCost(0.0, 0.0)
    if tried:
        one = tried[0]
        ready = LookUpModel(one.model, tuple(one.example.shape[1:]), scores.classes)
        cost = lane_cost(stopping, first, ready, one.example)
    problems = {
        synchronous: composition_problem(tried, points, cost, profile, settings, synchronous)
        for synchronous in settings.look_ups.modes
    }
    assembly = Assembly(
        *(graph, threads, digest_of(model_file), scores, points, tried, problems),
        {point: everywhere_s[point.position] for point in everywhere},
        settings.confidence,
    )
    rows = division.tune[:RACED_ROWS]
    inputs = [bind_rows(samples.take(slice(row, row + 1))) for row in rows]
    progress.stage("racing", 1)
    found = _choose(assembly, whole, inputs, settings) if tried else worthwhile.absence
    cascade, verification = None, None
    if isinstance(found, Chosen):
        cascade = assembly.of(found)
        [verification] = assembly.raced(whole, [cascade], inputs)
    progress.advance()
    reason = found if isinstance(found, str) else ""
    if verification is not None and verification.cascade_s >= verification.base_s:
        cascade = None
        reason = (
            f"with its caches the model took {verification.cascade_s * 1e3:.2f} ms on average, "
            f"without {verification.base_s * 1e3:.2f} ms: it is better served without"
        )
    return Exploration(
        cascade,
        reason,
        found.problem if isinstance(found, Chosen) else next(iter(problems.values())),
        points,
        found.tried if isinstance(found, Chosen) else (),
        skipped,
        verification,
        _label_agreement(samples, collected),
        Studied(assembly, cost, profile, base),
    )


def _choose(
    assembly: Assembly,
    whole: BaseModel,
    inputs: Sequence[Mapping[str, np.ndarray]],
    settings: ExplorationSettings,
) -> Chosen | str:
    """As ``decide`` says; a race on this machine names the fastest."""

    def fastest(entered: Sequence[Finalist]) -> Finalist:
        cascades = [assembly.unproved(one, settings.accuracy) for one in entered]
        times = assembly.raced(whole, cascades, inputs)
        return winner(list(zip(entered, times, strict=True)), settings.miss_cost)

    return decide(assembly.problems, assembly.tried, settings, fastest)


@dataclass(frozen=True, slots=True, eq=False)
class _Everything:
    """All rows that are run: the samples, then more to fit on, then outliers, of ``kinds`` and
    ``meant`` for one thing each."""

    samples: Samples
    fit: np.ndarray
    outliers: np.ndarray
    kinds: np.ndarray
    meant: np.ndarray


@dataclass(frozen=True, slots=True)
class _Worthwhile:
    """What to train, and why the rest of the variants, at their points, need not be."""

    trials: list[Trial]
    too_large: int
    too_slow: int

    @property
    def absence(self) -> str:
        """In words why nothing is to be trained."""
        return (
            f"of the variants at all points {self.too_large} are larger than the memory budget, "
            f"and the look-up of {self.too_slow} alone outlasts the model"
        )


def _everything(
    samples: Samples, more: Samples | None, division: Division, seed: int
) -> _Everything:
    if more is None or not len(division.more):
        outliers = make_outliers(samples.take(division.select), seed)
    else:
        outliers = make_outliers(more.take(division.more), seed, division.more_sources)
    parts = [samples, *([more] if more is not None else []), outliers.samples]
    inputs = {
        name: np.concatenate([part.inputs[name] for part in parts]) for name in samples.inputs
    }
    real = len(samples) + (len(more) if more is not None else 0)
    fit = np.concatenate([division.fit, len(samples) + division.more])
    strange = np.arange(real, real + len(outliers))
    return _Everything(Samples(inputs), fit, strange, outliers.kinds, outliers.meant)


def _choose_points(
    graph: ModelGraph, scores: Scores, folder: Path, settings: ExplorationSettings
) -> tuple[ExitPoint, ...]:
    """Points spread over the model's predicted time; those of an interrupted exploration again."""
    points = exit_points(graph, scores.position)
    if not points:
        raise InvalidModelError(
            f"model '{graph.name}' has no boundary between nodes at which one float32 tensor "
            "with the batch as first dimension is all that is live: no cache fits in"
        )
    kept = folder / f"values-{settings.points}.json"
    if kept.exists():
        values = set(json.loads(kept.read_text()))
        found = tuple(point for point in points if point.value in values)
        if len(found) == len(values):
            return found
    numbers = spread(points, [point.share for point in points], settings.points)
    chosen = tuple(points[number] for number in numbers)
    kept.write_text(json.dumps([point.value for point in chosen]))
    return chosen


def _worthwhile(
    collected: Collected,
    points: Sequence[ExitPoint],
    profile: BaseProfile,
    scores: Scores,
    folder: Path,
    settings: ExplorationSettings,
    fit_rows: int,
) -> _Worthwhile:
    """The trials of variants whose look-up is over before the model is, and which fit in memory.

    An untrained network is as fast as a trained one, so the rest need not be trained
    (hardware-aware profiling, GATI A.2.1).
    """
    epochs = min(MOST_EPOCHS, max(FEWEST_EPOCHS, ROW_VISITS // max(fit_rows, 1)))
    predictor = settings.predictor or PredictorSettings(epochs=epochs)
    trials = []
    too_large = too_slow = 0
    for index, point in enumerate(points):
        shape = tuple(collected.hidden[index].shape[1:])
        left_s = profile.cut_s - profile.reach_s[point.position]
        hidden = np.array(collected.hidden[index][:1])
        for number, name in enumerate(settings.variants):
            if not variant(name).applies(shape):
                continue
            network = empty_look_up(name, shape, scores.classes)
            budget = settings.memory_budget_bytes
            if budget is not None and weights_bytes(network) > budget:
                too_large += 1
            elif not settings.trains_all and _untrained_s(network, hidden, scores) >= left_s:
                too_slow += 1
            else:
                seed = settings.seed + 1000 * index + number
                trials.append(
                    Trial(folder, point.position, name, predictor, settings.selector, seed)
                )
    return _Worthwhile(trials, too_large, too_slow)


def _untrained_s(network: LookUp, hidden: np.ndarray, scores: Scores) -> float:
    shape = tuple(hidden.shape[1:])
    model = export_look_up(network, shape, is_checked=False)
    return look_up_seconds(LookUpModel(model, shape, scores.classes), hidden)


def _label_agreement(samples: Samples, collected: Collected) -> float | None:
    if samples.labels is None:
        return None
    answers = collected.teacher[: len(samples)].argmax(1)
    return float((answers == samples.labels).mean())


MOST_UNCERTAIN = 0.6
"""Mean entropy of the answers, of that of a uniform distribution: class scores are peaked."""

COMPARED_ROWS = 3


def check_classes(teacher: np.ndarray, scores: Scores, model: str) -> None:
    """Raises InvalidModelError where the answers do not look like scores of classes.

    ``teacher``: softmax of the scores, [rows, classes]. Nothing is asked of scores which the model
    itself or the user calls such.
    """
    if scores.is_certain:
        return
    entropy = -(teacher * np.log(np.maximum(teacher, 1e-12))).sum(1).mean()
    share = float(entropy) / math.log(scores.classes)
    if share > MOST_UNCERTAIN:
        raise InvalidModelError(
            f"output '{scores.value}' of model '{model}' does not look like class scores: on the "
            f"data given, a softmax of it is {share:.0%} as uncertain as guessing, expected at "
            f"most {MOST_UNCERTAIN:.0%}. Learned caches answer classifications only; if it is "
            f"one, say so with --output {scores.value}"
        )


def check_rows(
    base: BaseModel, points: tuple[ExitPoint, ...], scores: Scores, samples: Samples
) -> None:
    """Raises InvalidModelError where a row's values depend on the other rows of its batch."""
    rows = min(COMPARED_ROWS, len(samples))
    together, _ = hidden_and_scores(base, points, scores, bind_rows(samples.take(slice(rows))))
    for row in range(rows):
        one = samples.take(slice(row, row + 1))
        alone, _ = hidden_and_scores(base, points, scores, bind_rows(one))
        for point, ours, theirs in zip(points, alone, together, strict=True):
            close = np.allclose(ours[0], theirs[row], rtol=1e-2, atol=1e-3)
            if not close:
                raise InvalidModelError(
                    f"model '{base.graph.name}' mixes the rows of a batch (value "
                    f"'{point.value}'): learned caches need rows that can leave it"
                )
