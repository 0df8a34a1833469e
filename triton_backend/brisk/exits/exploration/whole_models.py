"""Approximate models as candidates: in front of the exact model, or behind an exit that misses."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from brisk.exits.base_model import BATCH_ROWS
from brisk.exits.cascade import INT8
from brisk.exits.data.samples import Division, Samples
from brisk.exits.exploration.composition import Tried
from brisk.exits.exploration.measuring import Between, evaluation_seconds
from brisk.exits.exploration.settings import ExplorationSettings
from brisk.exits.guarantee.calibration import Scored, joined
from brisk.exits.heads.exit_head import REFUSED
from brisk.exits.heads.exit_model import Judge, given
from brisk.exits.learning.approximate import ApproximateModel, memory_of
from brisk.exits.learning.quantising import quantised
from brisk.exits.learning.smaller import smaller_model
from brisk.exits.model_graph import ExitPoint, ModelGraph
from brisk.exits.scores import Scores

OUTLIERS = 700
"""The most outliers from which the floor is derived: each takes a run of the model."""


def front(graph: ModelGraph) -> ExitPoint:
    """Return the point in front of the model, named by the first input that it needs.

    An exit there reads all of them.
    """
    return ExitPoint(0, graph.needed[0].name)


def floor_of(outliers: Scored, kinds: np.ndarray, ordinary: np.ndarray | None = None) -> float:
    """Return the least score at which an approximate model answers; 0 if no outlier reaches any,
    above 1, where nothing is answered, if too many outliers have the greatest score.

    At most ``1 - REFUSED`` of each of the ``kinds`` (int64 [rows]) of outliers reach it that are
    answered otherwise than by the exact model: what is answered the same is no mistake, out of
    distribution or not. With the scores of ``ordinary`` rows it is no lower than the least of
    these that is an answer.
    """
    wrong = np.where(outliers.right | ~outliers.near, np.float32(0), outliers.scores)
    reached = [
        float(np.quantile(wrong[kinds == kind], REFUSED, method="higher"))
        for kind in np.unique(kinds)
    ]
    highest = max(reached, default=0.0)
    if highest <= 0:
        return 0.0
    floor = float(np.nextafter(np.float32(highest), np.float32(2)))
    answers = np.zeros(0) if ordinary is None else ordinary[ordinary > 0]
    return max(floor, float(answers.min())) if len(answers) else floor


def above(scored: Scored, floor: float) -> Scored:
    """Return ``scored`` with scores below ``floor`` set to 0, as an exit with that floor does."""
    scores = np.where(scored.scores < floor, np.float32(0), scored.scores)
    return dataclasses.replace(scored, scores=scores)


@dataclass(frozen=True, slots=True, eq=False)
class LabelledOutliers:
    """Outliers that floors are taken from."""

    samples: Samples
    kinds: np.ndarray
    """The kind of each outlier, int64 [rows]."""
    classes: np.ndarray
    """The exact model's classes, int64 [rows]."""


def approximate_models(
    graph: ModelGraph,
    scores: Scores,
    fit: Samples,
    settings: ExplorationSettings,
    folder: Path | None,
) -> tuple[list[ApproximateModel], list[str]]:
    """Return the approximate models to try: the model in int8, the smaller one that the settings
    name; and why there is none in int8. ``fit``: the rows that ranges are taken from.
    ``folder``: where ``quantised`` works.

    Raises InvalidModelError if the smaller model cannot answer for this one.
    """
    found, reasons = [], []
    if settings.smaller is not None:
        found.append(smaller_model(settings.smaller, graph, scores, fit, settings.threads))
    if INT8 in settings.variants:
        try:
            found.append(quantised(graph, scores, fit.inputs, folder))
        except ValueError as error:
            reasons.append(str(error))
    return found, reasons


def try_whole(
    approximate: ApproximateModel,
    samples: Samples,
    division: Division,
    *,
    answers: np.ndarray,
    outliers: LabelledOutliers,
    points: int,
    threads: int,
    between: Between,
) -> list[Tried]:
    """Return an approximate model at each of so many ``points``, the first being ``front``.

    ``answers``: the exact model's classes of the samples.
    """
    without_floor = approximate.opened(approximate.exit_model(0.0), threads)

    def scored(rows: Samples, classes: np.ndarray) -> Scored:
        parts = []
        for start in range(0, len(rows), BATCH_ROWS):
            some = slice(start, start + BATCH_ROWS)
            found = without_floor(given(approximate.shape, rows.take(some).inputs))
            right = found.logits.argmax(1) == classes[some]
            parts.append(Scored(found.scores, right, found.near))
        return joined(parts)

    floor = 0.0
    if len(outliers.samples):
        of_outliers = scored(outliers.samples, outliers.classes)
        ordinary = scored(samples.take(division.select), answers[division.select])
        floor = floor_of(of_outliers, outliers.kinds, ordinary.scores)
    tune, held_out = (
        above(scored(samples.take(rows), answers[rows]), floor)
        for rows in (division.tune, division.calibrate)
    )
    model = approximate.exit_model(floor)
    one = given(approximate.shape, samples.take(slice(0, 1)).inputs)
    tried = Tried(
        point=0,
        variant=approximate.variant,
        evaluation_s=evaluation_seconds(approximate.opened(model, threads), one, between),
        model=model,
        memory_bytes=memory_of(model, approximate.shape),
        shape=approximate.shape,
        tune=tune,
        held_out=held_out,
        judge=Judge.MARGIN,
    )
    return [dataclasses.replace(tried, point=point) for point in range(points)]
