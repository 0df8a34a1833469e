"""The exploration: from a model file and samples to the model's caches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from brisk.errors import InvalidModelError, InvalidRequestError
from brisk.exits.base_model import BaseModel, load_graph, taps_of, values_at
from brisk.exits.cascade import INT8, Cascade, answer_form
from brisk.exits.cascade_file import unchanged
from brisk.exits.data.collecting import (
    Reduce,
    bind_rows,
    check_classes,
    check_outputs,
    check_rows,
    collect,
    settled_scores,
    with_rows,
)
from brisk.exits.data.outliers import MAKERS, ROWS_OF_A_KIND, Outliers, make_outliers
from brisk.exits.data.samples import Division, Samples, divide
from brisk.exits.exploration.composition import CompositionProblem, ways_tried
from brisk.exits.exploration.measuring import (
    BENCHMARK_ROWS,
    BaseProfile,
    Verification,
    evaluation_seconds,
    profile_base,
)
from brisk.exits.exploration.selection import Chosen, decide, winner
from brisk.exits.exploration.settings import ExplorationSettings, Progress, TooLargeError
from brisk.exits.exploration.shortlist import CandidateCascade
from brisk.exits.exploration.stored import REDUCED, with_room
from brisk.exits.exploration.study import ExploredData, ExploredModel, Inputs, Studied, study
from brisk.exits.exploration.trial import METHOD, Trial, run_trials
from brisk.exits.files.learning_record import WayTried
from brisk.exits.heads.exit_head import ExitHead, empty_head
from brisk.exits.heads.exit_model import ExitModel
from brisk.exits.heads.predictors import variant, weights_bytes
from brisk.exits.learning.exporting import export_head
from brisk.exits.learning.predictor import PredictorSettings
from brisk.exits.learning.selection import SelectorSettings
from brisk.exits.model_graph import ExitPoint, exit_points, read_graph, spread
from brisk.exits.scores import Scores, find_scores

ROW_VISITS = 80_000
FEWEST_EPOCHS, MOST_EPOCHS = 4, 40
"""The bounds of a predictor's epochs, which within them visit ``ROW_VISITS`` rows in all."""

FOLDER = f"at-values-{METHOD}"
"""The folder of an interrupted call's files; another ``METHOD`` has other rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Exploration:
    """The result of an exploration."""

    cascade: Cascade | None
    """The chosen cascade; None if the model is better served without caches."""
    reason: str
    """The reason why there is no cascade; else empty."""
    problem: CompositionProblem
    """The composition problem, with every trained variant as measured."""
    chosen: tuple[int, ...]
    skipped: int
    """The number of variants not trained, whose evaluation alone is too slow or too large here."""
    verification: Verification | None
    label_agreement: float | None
    """The model's accuracy on the samples' labels, if they have any."""
    studied: Studied

    @property
    def ways(self) -> tuple[WayTried, ...]:
        """The candidates, each alone, the best of each kind."""
        return ways_tried(self.studied.problems.values(), self.studied.points)


def explore(
    model_file: Path,
    samples: Samples,
    folder: Path,
    settings: ExplorationSettings,
    more_to_fit: Samples | None = None,
    progress: Progress | None = None,
) -> Exploration:
    """Explore caches for a model: train, compose and calibrate. Reuse an interrupted call's files
    in ``folder``.

    ``samples`` are like what will be served; ``more_to_fit`` may be anything similar, it only fits
    predictors. Raises InvalidModelError if the model cannot have caches, InvalidRequestError if
    the samples do not fit it or are too few, ReplacedModelError if it was replaced meanwhile.
    """
    folder = folder / FOLDER
    folder.mkdir(exist_ok=True)
    torch.set_num_threads(settings.threads)
    with unchanged(model_file) as digest:
        model = _open_model(model_file, digest, samples, settings)
        return _explored(model, samples, folder, settings, more_to_fit, progress or Progress())


def _explored(
    model: ExploredModel,
    samples: Samples,
    folder: Path,
    settings: ExplorationSettings,
    more_to_fit: Samples | None,
    progress: Progress,
) -> Exploration:
    division = divide(samples, settings.seed, more_to_fit, proves_newest=settings.proves_newest)
    first = bind_rows(samples.take(slice(0, 1)))
    profile = profile_base(model.whole, model.cut, model.points, first)
    check_outputs(model.whole, samples)
    check_rows(model.base, model.points, model.scores, samples)
    scores = settled_scores(model.base, model.scores, samples)
    model = dataclasses.replace(model, scores=scores)

    outliers = _outliers(folder, samples, more_to_fit, division, settings.seed)
    parts = [samples, *([] if more_to_fit is None else [more_to_fit]), outliers.samples]
    progress.stage("running the base model", sum(map(len, parts)))
    collected = collect(
        *(model.base, model.points, scores, parts, folder), progress.advance, model.reductions
    )
    answers, are_numbers = collected.teacher[: len(samples)], collected.are_numbers
    division = _of_numbers(division, are_numbers, len(samples))
    numbers = answers[are_numbers[: len(samples)]]
    check_classes(numbers, scores, model.graph.name, needs_classes=settings.needs_classes)
    _write_rows(folder, division, outliers, are_numbers, len(samples))
    data = ExploredData(samples, outliers.samples, collected, division, folder)
    trials, absence = _worthwhile(model, data, profile, settings)
    progress.stage("training caches", len(trials))
    run_trials(trials, settings.jobs, progress.advance)

    studied = study(model, data, trials, settings, progress)
    rows = division.tune[:BENCHMARK_ROWS]
    inputs = [bind_rows(samples.take(slice(row, row + 1))) for row in rows]
    progress.stage("benchmarking", 1)
    chosen = _choose(studied, inputs) if studied.tried else absence
    exploration = Exploration(
        cascade=None,
        reason=chosen if isinstance(chosen, str) else "",
        problem=next(iter(studied.problems.values())),
        chosen=(),
        skipped=len(model.points) * sum(name != INT8 for name in settings.variants) - len(trials),
        verification=None,
        label_agreement=(
            None if samples.labels is None else float((answers.argmax(1) == samples.labels).mean())
        ),
        studied=studied,
    )
    if isinstance(chosen, Chosen):
        exploration = _verified(exploration, chosen, inputs)
    progress.advance()
    return exploration


def _open_model(
    model_file: Path, digest: str, samples: Samples, settings: ExplorationSettings
) -> ExploredModel:
    """Load the model of ``digest`` and choose its points, spread over its predicted time."""
    graph, threads = read_graph(model_file), settings.threads
    scores = find_scores(graph, settings.output)
    boundaries = exit_points(graph, scores.position)
    if not boundaries:
        raise InvalidModelError(
            f"model '{graph.name}' has no boundary between nodes at which one float32 tensor "
            "with the batch as first dimension is all that is live: no cache fits in"
        )
    numbers = spread(boundaries, [point.share for point in boundaries], settings.points)
    points = tuple(boundaries[number] for number in numbers)
    whole = load_graph(graph, threads)
    base = load_graph(graph, threads, taps_of(points, scores, graph))
    points = with_rows(base, points, samples)
    reductions: dict[str, Reduce | None] = {}
    if settings.hidden_bytes is not None:
        reductions = _reductions(base, points, scores, samples, settings)
        points = tuple(point for point in points if point.value in reductions)
    cut = load_graph(graph, threads, [point.value for point in points])
    return ExploredModel(graph, digest, scores, boundaries, points, whole, base, cut, reductions)


def _reductions(
    base: BaseModel,
    points: Sequence[ExitPoint],
    scores: Scores,
    samples: Samples,
    settings: ExplorationSettings,
) -> dict[str, Reduce | None]:
    """Return those of ``points`` whose hidden values of all rows can be stored in the room that
    the settings leave them (``with_room``). Raises TooLargeError if none can."""
    most_bytes = settings.hidden_bytes or 0
    values = values_at(base, points, bind_rows(samples.take(slice(0, 1))))
    values = {point.value: values[point.value] for point in points}
    rows = len(samples) + len(MAKERS) * ROWS_OF_A_KIND
    kept = with_room(values, scores.classes, settings.variants, most_bytes // rows)
    if not kept:
        least = min(value.nbytes for value in values.values())
        raise TooLargeError(
            f"model '{base.graph.name}' has hidden values of {least >> 10} KiB and more: those of "
            f"{rows} rows take more than {most_bytes >> 20} MiB"
        )
    return kept


def _choose(studied: Studied, inputs: Sequence[Inputs]) -> Chosen | str:
    """Return the cascade that ``decide`` chooses by a benchmark on this machine, or why there is
    none."""

    def fastest(candidates: Sequence[CandidateCascade]) -> CandidateCascade:
        unproved = [studied.unproved(one) for one in candidates]
        times = studied.benchmarked(unproved, inputs)
        return winner(list(zip(candidates, times, strict=True)), studied.settings.miss_cost)

    return decide(studied.problems, studied.tried, studied.settings, fastest)


def _verified(exploration: Exploration, chosen: Chosen, inputs: Sequence[Inputs]) -> Exploration:
    """Return the exploration with the chosen cascade, unless the model is faster without."""
    cascade = exploration.studied.of(chosen)
    [verification] = exploration.studied.benchmarked([cascade], inputs)
    is_faster = verification.cascade_s < verification.base_s
    reason = (
        f"with its caches the model took {verification.cascade_s * 1e3:.2f} ms on "
        f"average, without {verification.base_s * 1e3:.2f} ms: it is better served without"
    )
    return dataclasses.replace(
        exploration,
        cascade=cascade if is_faster else None,
        reason="" if is_faster else reason,
        problem=chosen.problem,
        chosen=chosen.tried,
        verification=verification,
    )


def _outliers(
    folder: Path, samples: Samples, more: Samples | None, division: Division, seed: int
) -> Outliers:
    if more is None or not len(division.more):
        return make_outliers(samples.take(division.select), seed, folder=folder)
    made_of, sources = more.take(division.more), division.more_sources
    return make_outliers(made_of, seed, sources, folder=folder)


def _of_numbers(division: Division, are_numbers: np.ndarray, samples: int) -> Division:
    """Return the division without what trains and the model answers with NaN, which would spread
    to all weights. Other such rows stay: whatever answers them early is wrong.

    Raises InvalidRequestError if nothing is left.
    """
    fit, select = (rows[are_numbers[rows]] for rows in (division.fit, division.select))
    more = are_numbers[samples + division.more]
    if not len(fit) or not len(select):
        raise InvalidRequestError(
            f"the model answers {samples - int(are_numbers[:samples].sum())} of {samples} samples "
            "with NaN or infinite scores: expected finite ones to train learned caches on"
        )
    return dataclasses.replace(
        division,
        fit=fit,
        select=select,
        more=division.more[more],
        more_sources=division.more_sources[more],
    )


def _write_rows(
    folder: Path, division: Division, outliers: Outliers, are_numbers: np.ndarray, samples: int
) -> None:
    """Write the use of each row for the trials; ``samples``: how many come before all others."""
    first = len(are_numbers) - len(outliers)
    used = np.flatnonzero(are_numbers[first:])
    np.savez(
        folder / "rows.npz",
        fit=np.concatenate([division.fit, samples + division.more]),
        select=division.select,
        outliers=first + used,
        kinds=outliers.kinds[used],
        meant=outliers.uses[used],
    )


def _worthwhile(
    model: ExploredModel,
    data: ExploredData,
    profile: BaseProfile,
    settings: ExplorationSettings,
) -> tuple[list[Trial], str]:
    """Return the trials of variants whose evaluation ends before the model does and which fit in
    memory, and the reason why there are no others.

    An untrained network is as fast as a trained one, so the rest need not be trained
    (hardware-aware profiling, GATI A.2.1).
    """
    fit_rows = len(data.division.fit) + len(data.division.more)
    epochs = min(MOST_EPOCHS, max(FEWEST_EPOCHS, ROW_VISITS // max(fit_rows, 1)))
    predictor = settings.predictor or PredictorSettings(epochs=epochs)
    budget = math.inf if settings.memory_budget_bytes is None else settings.memory_budget_bytes
    trials = []
    too_large = too_slow = 0
    for index, point in enumerate(model.points):
        hidden = data.collected.firsts[index]
        shape = tuple(hidden.shape[1:])
        is_reduced = data.collected.summaries[index] is not None
        left_s = profile.cut_s - profile.reach_s[point.position]
        for number, name in enumerate(settings.variants):
            if name == INT8 or not variant(name).applies(shape):
                continue
            if is_reduced and name != REDUCED:
                continue
            network = empty_head(name, shape, model.scores.classes)
            if weights_bytes(network) > budget:
                too_large += 1
            elif not settings.trains_all and _untrained_s(network, hidden, model.scores) >= left_s:
                too_slow += 1
            else:
                seed = settings.seed + 1000 * index + number
                trials.append(
                    Trial(
                        folder=data.folder,
                        position=point.position,
                        variant=name,
                        predictor=predictor,
                        selector=SelectorSettings(),
                        seed=seed,
                        reduced_from=shape if is_reduced else None,
                    )
                )
    absence = (
        f"of the variants at all points {too_large} are larger than the memory budget, "
        f"and the evaluation of {too_slow} alone outlasts the model"
    )
    return trials, absence


def _untrained_s(network: ExitHead, hidden: np.ndarray, scores: Scores) -> float:
    shape = tuple(hidden.shape[1:])
    model = export_head(network, shape, is_checked=False)
    return evaluation_seconds(ExitModel(model, shape, answer_form(scores)), hidden)
