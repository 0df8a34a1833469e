"""The model itself in int8 as a candidate: in front of it all, or behind an exit that misses."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from brisk.exits.cascade import INT8
from brisk.exits.data.samples import Division, Samples
from brisk.exits.exploration.composition import Tried
from brisk.exits.exploration.measuring import Between, look_up_seconds
from brisk.exits.heads.lookup import Predicted, decided, whole_model
from brisk.exits.heads.lookup_model import LookUpModel
from brisk.exits.learning.quantising import memory_of, quantised
from brisk.exits.model_graph import ExitPoint, ModelGraph, readable
from brisk.exits.scores import Scores

OUTLIERS = 700
"""Rows of them that the floor is taken from, at most: each takes a run of the model."""

ROWS = 32


def front(graph: ModelGraph) -> ExitPoint:
    """In front of the model. It is told by the first of its inputs; a look-up there reads all."""
    return ExitPoint(0, graph.inputs[0].name)


def try_quantised(
    graph: ModelGraph,
    scores: Scores,
    samples: Samples,
    division: Division,
    outliers: tuple[Samples, np.ndarray, np.ndarray],
    answers: np.ndarray,
    points: int,
    threads: int,
    between: Between,
) -> list[Tried] | str:
    """Of each of so many ``points``, the first being ``front``; in words why there is none.

    ``answers``: the exact model's classes of the samples. ``outliers``: those for floors, their
    kinds, and the model's classes of them. The floor lets at most a few of each kind be answered
    otherwise than by the model: what it answers the same is no mistake, strange or not.
    """
    if readable(graph) is None:
        return "it reads something else than one float32 tensor of fixed rows"
    try:
        made = quantised(graph, scores, samples.take(division.fit).inputs)
    except ValueError as error:
        return str(error)
    form = made.shape, scores.classes, threads
    ask = LookUpModel(made.look_up(0.0), *form, is_whole=True)

    def looked(rows: Samples, classes: np.ndarray) -> Predicted:
        logits = torch.from_numpy(_logits(ask, rows))
        return Predicted(logits, torch.zeros(len(logits)), torch.from_numpy(classes))

    tune, held_out, select = (
        looked(samples.take(rows), answers[rows])
        for rows in (division.tune, division.calibrate, division.select)
    )
    network = whole_model(0.0)
    strange, kinds, classes = outliers
    if len(strange):
        seen = looked(strange, classes)
        is_wrong = seen.logits.argmax(1) != seen.classes
        even = torch.zeros_like(seen.logits)  # of no margin
        judged = torch.where(is_wrong[:, None], seen.logits, even)
        judged_rows = Predicted(judged, seen.distances, torch.from_numpy(kinds))
        network.set_floor(select, judged_rows, doubted_share=0.0)
    model = made.look_up(float(network.floor))
    one = np.ascontiguousarray(next(iter(samples.inputs.values()))[:1])
    tried = Tried(
        point=0,
        variant=INT8,
        lookup_s=look_up_seconds(LookUpModel(model, *form, is_whole=True), one, between),
        model=model,
        memory_bytes=memory_of(model, made.shape),
        shape=made.shape,
        tune=decided(network, tune),
        held_out=decided(network, held_out),
        judge=network.judge,
    )
    return [dataclasses.replace(tried, point=point) for point in range(points)]


def _logits(ask: LookUpModel, rows: Samples) -> np.ndarray:
    (values,) = rows.inputs.values()
    parts: Sequence[np.ndarray] = [
        ask(np.ascontiguousarray(values[start : start + ROWS])).logits
        for start in range(0, len(values), ROWS)
    ]
    return np.concatenate(parts)
