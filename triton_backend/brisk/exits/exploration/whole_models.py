"""The model itself in int8 as a candidate: in front of the exact model, or behind an exit that
misses."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from brisk.exits.cascade import INT8
from brisk.exits.data.samples import Division, Samples
from brisk.exits.exploration.composition import Tried
from brisk.exits.exploration.measuring import Between, evaluation_seconds
from brisk.exits.guarantee.calibration import Scored
from brisk.exits.heads.exit_head import REFUSED, Predicted, decided, whole_model
from brisk.exits.heads.exit_model import ExitModel
from brisk.exits.learning.quantising import memory_of, quantised
from brisk.exits.model_graph import ExitPoint, ModelGraph, readable
from brisk.exits.scores import Scores

OUTLIERS = 700
"""The most outliers from which the floor is derived: each takes a run of the model."""

ROWS = 32


def front(graph: ModelGraph) -> ExitPoint:
    """Return the point in front of the model, named by the first input that it needs.

    An exit there reads all of them.
    """
    return ExitPoint(0, graph.needed[0].name)


def floor_of(outliers: Scored, kinds: np.ndarray, ordinary: np.ndarray | None = None) -> float:
    """Return the least score at which the model in int8 answers; 0 if no outlier reaches any.

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
    floor = float(np.nextafter(np.float32(highest), np.float32(1)))
    answers = np.zeros(0) if ordinary is None else ordinary[ordinary > 0]
    return max(floor, float(answers.min())) if len(answers) else floor


@dataclass(frozen=True, slots=True, eq=False)
class LabelledOutliers:
    """Outliers that floors are taken from."""

    samples: Samples
    kinds: np.ndarray
    """The kind of each outlier, int64 [rows]."""
    classes: np.ndarray
    """The exact model's classes, int64 [rows]."""


def try_quantised(
    graph: ModelGraph,
    scores: Scores,
    samples: Samples,
    division: Division,
    *,
    answers: np.ndarray,
    outliers: LabelledOutliers,
    points: int,
    threads: int,
    between: Between,
) -> list[Tried] | str:
    """Return the model in int8 at each of so many ``points``, the first being ``front``, or why
    there is none.

    ``answers``: the exact model's classes of the samples.
    """
    if readable(graph) is None:
        return "it reads something else than one float32 tensor of fixed rows"
    try:
        int8 = quantised(graph, scores, samples.take(division.fit).inputs)
    except ValueError as error:
        return str(error)

    def ready(model: bytes) -> ExitModel:
        return int8.opened(model, threads)

    without_floor = ready(int8.exit_model(0.0))

    def predicted(rows: Samples, classes: np.ndarray) -> Predicted:
        logits = torch.from_numpy(_logits(without_floor, rows))
        return Predicted(logits, torch.zeros(len(logits)), torch.from_numpy(classes))

    network = whole_model(0.0)
    if len(outliers.samples):
        scored = decided(network, predicted(outliers.samples, outliers.classes))
        select = predicted(samples.take(division.select), answers[division.select])
        ordinary = decided(network, select).scores
        network = whole_model(floor_of(scored, outliers.kinds, ordinary))
    tune, held_out = (
        decided(network, predicted(samples.take(rows), answers[rows]))
        for rows in (division.tune, division.calibrate)
    )
    model = int8.exit_model(float(network.floor))
    one = np.ascontiguousarray(next(iter(samples.inputs.values()))[:1])
    tried = Tried(
        point=0,
        variant=INT8,
        evaluation_s=evaluation_seconds(ready(model), one, between),
        model=model,
        memory_bytes=memory_of(model, int8.shape),
        shape=int8.shape,
        tune=tune,
        held_out=held_out,
        judge=network.judge,
    )
    return [dataclasses.replace(tried, point=point) for point in range(points)]


def _logits(exit_model: ExitModel, rows: Samples) -> np.ndarray:
    (values,) = rows.inputs.values()
    parts: Sequence[np.ndarray] = [
        exit_model(np.ascontiguousarray(values[start : start + ROWS])).logits
        for start in range(0, len(values), ROWS)
    ]
    return np.concatenate(parts)
