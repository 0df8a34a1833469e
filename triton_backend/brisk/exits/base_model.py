"""A model in segments, whole in this process, for exploration, learning and audits."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from brisk.errors import InvalidModelError
from brisk.exits.model_graph import ExitPoint, ModelGraph
from brisk.exits.scores import Scores, as_probabilities, checked_scores
from brisk.segments.frame import SegmentFrame, run_serially
from brisk.segments.model.sources import BareModel
from brisk.segments.program import SegmentProgram
from brisk.segments.source import SegmentPlan
from brisk.segments.starting import open_warm_program

BATCH_ROWS = 32


@dataclass(frozen=True, slots=True, eq=False)
class BaseModel:
    """A model that exits are evaluated in. ``program`` stops at least behind the values that it
    was loaded with."""

    graph: ModelGraph
    program: SegmentProgram

    @property
    def plan(self) -> SegmentPlan:
        return self.program.plan

    def start(self, inputs: Mapping[str, np.ndarray]) -> SegmentFrame:
        """Return a frame before its first segment. Raises InvalidRequestError."""
        return SegmentFrame(self.program, inputs)

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return all outputs by name. Raises InvalidRequestError if the inputs do not fit."""
        return run_serially(self.program, inputs)

    def after(self, taps: Collection[str]) -> dict[int, tuple[str, ...]]:
        """Return those of ``taps`` that are live for the first time, by the number of segments
        done."""
        remaining, taps_by_position = set(taps), {}
        for done, live in enumerate(live_at(self.plan)):
            fresh = tuple(name for name in live if done and name in remaining)
            if fresh:
                taps_by_position[done] = fresh
                remaining.difference_update(fresh)
        return taps_by_position


def load_graph(graph: ModelGraph, threads: int = 1, taps: Collection[str] = ()) -> BaseModel:
    """Load the model with warm sessions, to stop behind ``taps``. Raises InvalidModelError."""
    model = BareModel(graph.path, threads, taps)
    return BaseModel(graph, open_warm_program(model))


def live_at(plan: SegmentPlan) -> list[tuple[str, ...]]:
    """Return the values that are live, by the number of segments done, from 0 to all."""
    alive = {variable.name: None for variable in plan.inputs}
    table = [tuple(alive)]
    for spec in plan.segments:
        alive.update((name, None) for name in spec.outputs)
        alive = {name: None for name in alive if name not in spec.dead}
        table.append(tuple(alive))
    return table


def taps_of(points: Collection[ExitPoint], scores: Scores, graph: ModelGraph) -> list[str]:
    """Return the values behind which a model has to stop so that its values at ``points`` and its
    scores can be read."""
    outputs = {variable.name for variable in graph.outputs}
    return [*(point.value for point in points), *({scores.value} - outputs)]


def values_at(
    base: BaseModel,
    points: Sequence[ExitPoint],
    inputs: Mapping[str, np.ndarray],
    scores: Scores | None = None,
) -> dict[str, np.ndarray]:
    """Return the value at each point, by name, and the scores as the model computes them.

    Precondition: ``base`` was loaded with ``taps_of`` these.
    """
    if base.graph.is_single and len(next(iter(inputs.values()))) > 1:
        parts = [values_at(base, points, row, scores) for row in _one_by_one(inputs)]
        return {
            name: np.concatenate([np.atleast_1d(part[name]) for part in parts])
            for name in parts[0]
        }
    tapped = {point.value for point in points}
    places = base.after(tapped if scores is None else {*tapped, scores.value})
    values: dict[str, np.ndarray] = {}
    frame = base.start(inputs)
    while not frame.step():
        for name in places.get(frame.position, ()):
            values[name] = frame.value_at(name)
    return {**frame.results(), **values}


def _one_by_one(inputs: Mapping[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    for row in range(len(next(iter(inputs.values())))):
        yield {name: np.ascontiguousarray(array[row : row + 1]) for name, array in inputs.items()}


def run_base(
    base: BaseModel,
    points: Sequence[ExitPoint],
    scores: Scores,
    inputs: Mapping[str, np.ndarray],
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the value at each point, float32 [rows, ...], and the distribution [rows, classes].

    Precondition: ``base`` was loaded with ``taps_of`` these. Raises InvalidModelError if the model
    does not keep rows.
    """
    values = values_at(base, points, inputs, scores)
    distribution = as_probabilities(checked_scores(values[scores.value], scores), scores.form)
    hidden = [values[point.value] for point in points]
    rows = {len(value) for value in (*hidden, distribution)}
    if len(rows) != 1:
        raise InvalidModelError(
            f"model '{base.graph.name}' does not keep the batch as first dimension: "
            f"values have {sorted(rows)} rows for one batch"
        )
    return hidden, distribution


def answers_of(
    base: BaseModel, scores: Scores, inputs: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, ...]:
    """Return the model's answers, to compare early answers with, [rows, ...] each: the
    distribution over the classes, or the value and the others.

    Precondition: ``base`` was loaded with ``taps_of`` the scores. Raises InvalidModelError if the
    model does not keep rows.
    """
    if scores.tolerance is None:
        return (run_base(base, (), scores, inputs)[1],)
    results = values_at(base, (), inputs)
    answers = tuple(results[name] for name in (scores.value, *scores.others))
    checked_scores(answers[0], scores)
    rows = len(next(iter(inputs.values())))
    if any(answer.shape[:1] != (rows,) for answer in answers):
        raise InvalidModelError(
            f"model '{base.graph.name}' does not keep the batch as first dimension: of {rows} "
            f"rows outputs have shapes {[list(answer.shape) for answer in answers]}"
        )
    return answers


def run_in_batches(
    base: BaseModel,
    points: Sequence[ExitPoint],
    scores: Scores,
    inputs: Mapping[str, np.ndarray],
    most_rows: int = BATCH_ROWS,
) -> Iterator[tuple[list[np.ndarray], np.ndarray]]:
    """Yield the results of ``run_base``, for ``BATCH_ROWS`` rows at a time, or ``most_rows``."""
    step = min(BATCH_ROWS, most_rows)
    for start in range(0, len(next(iter(inputs.values()))), step):
        part = {
            name: np.ascontiguousarray(array[start : start + step])
            for name, array in inputs.items()
        }
        yield run_base(base, points, scores, part)
