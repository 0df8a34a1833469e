"""The way to early answers of a model whose answers are no classes: embeddings, regressions.

There is one candidate, the model itself in int8. Its answer to a row counts as the model's own
where it is within a tolerance. It answers rows whose values are like those of the data; thresholds
are proved as for caches (``brisk.exits.guarantee.calibration``).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from brisk.errors import InvalidModelError
from brisk.exits.base_model import BATCH_ROWS, BaseModel, load_graph, run_in_batches, taps_of
from brisk.exits.cascade import INT8, Cascade, Exit, Expected, Level
from brisk.exits.data.collecting import COMPARED_ROWS, bind_rows
from brisk.exits.data.outliers import make_outliers
from brisk.exits.data.samples import Division, Samples, divide
from brisk.exits.exploration.measuring import (
    RUNS,
    WARM_UP,
    Between,
    Verification,
    look_up_seconds,
    race,
    repeat,
    taken_s,
)
from brisk.exits.exploration.settings import ExplorationSettings, Progress
from brisk.exits.exploration.whole_models import OUTLIERS, front
from brisk.exits.files.artefact import digest_of
from brisk.exits.guarantee.calibration import CascadeCount, Promise, Scored, calibrate
from brisk.exits.heads.lookup import REFUSED
from brisk.exits.heads.lookup_model import Judge, LookUpModel
from brisk.exits.learning.quantising import Quantised, Typical, memory_of, quantised
from brisk.exits.model_graph import ModelGraph, read_graph
from brisk.exits.scores import Scores, agreeing, find_values
from brisk.settings import Tolerance

RACED_ROWS = 320

DOUBTED_SHARE = 0.5
"""Where more of the ordinary rows are under the floor that outliers ask for, nothing is served:
most of the gain would be gone, and the values say little about what is strange."""


@dataclass(frozen=True, slots=True, eq=False)
class ExploredValues:
    """``cascade`` is None where the model is better served without; ``reason`` says why."""

    cascade: Cascade | None
    reason: str
    verification: Verification | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Looked:
    """Rows through the model in int8: its ``values`` [rows, values], ``scores`` and ``near``
    [rows], and the exact model's values."""

    values: np.ndarray
    scores: np.ndarray
    near: np.ndarray
    own: np.ndarray

    def scored(self, scores: Scores, floor: float = 0.0) -> Scored:
        """Below ``floor`` nothing is answered."""
        kept = np.where(self.scores < floor, np.float32(0), self.scores)
        return Scored(kept, agreeing(self.values, self.own, scores), self.near)


def explore_values(
    model_file: Path,
    samples: Samples,
    tolerance: Tolerance,
    settings: ExplorationSettings,
    progress: Progress | None = None,
) -> ExploredValues:
    """Quantise, find a floor and thresholds, prove, and race with the exact model.

    Raises InvalidModelError where the model cannot be had so, InvalidRequestError where the
    samples are too few.
    """
    progress = progress or Progress()
    graph, threads = read_graph(model_file), settings.threads
    scores = find_values(graph, tolerance)
    division = divide(samples, settings.seed, proves_newest=settings.proves_newest)
    whole = load_graph(graph, threads, taps_of((), scores, graph))
    _check_rows(whole, scores, samples)
    progress.stage("quantising", 1)
    try:
        made = quantised(graph, scores, samples.take(division.fit).inputs)
    except ValueError as error:
        return ExploredValues(None, f"the model in int8 is the one way there is, and {error}")
    progress.advance()

    progress.stage("running the base model", 1)
    typical = Typical.of(_own_values(whole, scores, samples.take(division.fit)))
    form = made.shape, scores.classes, threads
    ask = LookUpModel(made.look_up(0.0, typical), *form, is_whole=True)
    tune, held_out = (
        _looked(ask, whole, scores, samples.take(rows))
        for rows in (division.tune, division.calibrate)
    )
    agrees = float(tune.scored(scores).right.mean())
    unproved = (
        f"int8 keeps to {tolerance} in {agrees:.1%} of the samples to tune with, which does not "
        f"prove {settings.accuracy:.1%}"
    )
    if agrees < settings.accuracy:
        return ExploredValues(None, unproved)
    floor = _floor(ask, whole, scores, samples, division, settings.seed)
    progress.advance()
    passing = float((tune.scores >= floor).mean())
    if passing < DOUBTED_SHARE:
        return ExploredValues(
            None,
            f"strange inputs that int8 answers otherwise look like {1 - passing:.0%} of the data",
        )
    inputs = [bind_rows(samples.take(slice(row, row + 1))) for row in division.tune[:RACED_ROWS]]
    exit_, base_s = _as_exit(made, made.look_up(floor, typical), graph, threads, whole, inputs[0])
    saved_s = base_s - exit_.lookup_s
    levels = _levels(tune.scored(scores, floor), held_out.scored(scores, floor), settings, saved_s)
    if not levels:
        return ExploredValues(None, unproved)
    answered = levels[0].count.exits[0].answered / levels[0].count.inputs
    cascade = Cascade(
        model_digest=digest_of(model_file),
        scores=scores,
        exits=(exit_,),
        levels=levels,
        confidence=settings.confidence,
        expected=Expected(base_s, exit_.lookup_s + (1 - answered) * base_s),
        synchronous=True,
    )
    progress.stage("racing", 1)
    [verification] = race(whole, [(whole, cascade)], inputs)
    progress.advance()
    if verification.cascade_s >= verification.base_s:
        return ExploredValues(
            None,
            f"in int8 the model took {verification.cascade_s * 1e3:.2f} ms on average, exactly "
            f"{verification.base_s * 1e3:.2f} ms: it is better served as it is",
            verification,
        )
    return ExploredValues(cascade, "", verification)


def _levels(
    tune: Scored, held_out: Scored, settings: ExplorationSettings, saved_s: float
) -> tuple[Level, ...]:
    """What the held-out rows prove, from the promise that was asked for to stricter ones."""
    tuning, proving = (
        Scored(one.scores[None], one.right[None], one.near[None]) for one in (tune, held_out)
    )

    def value(count: CascadeCount) -> float:
        return count.saving_s([saved_s], [0.0])

    found = []
    promises: tuple[Promise, ...] = (settings.promise, *settings.stricter)
    for promise in promises:
        proved = calibrate(tuning, proving, promise, value)
        if proved is None:
            break
        found.append(Level(promise.accuracy, proved.thresholds, proved.count))
    return tuple(found)


def _as_exit(
    made: Quantised,
    model: bytes,
    graph: ModelGraph,
    threads: int,
    whole: BaseModel,
    row: Mapping[str, np.ndarray],
) -> tuple[Exit, float]:
    """``model`` in front of the exact one, and what that takes for a row, seconds."""

    def run() -> object:
        return whole.run(row)

    base_s = statistics.median(repeat(lambda _: taken_s(run), WARM_UP, RUNS))
    (one,) = row.values()
    ready = LookUpModel(model, made.shape, made.classes, threads, is_whole=True)
    taken = look_up_seconds(ready, one, Between(run, base_s))
    found = Exit(
        *(front(graph), INT8, made.shape, made.classes, model, taken),
        *(memory_of(model, made.shape), max(0.0, base_s - taken), taken),
        judge=Judge.TYPICAL,
        threads=threads,
    )
    return found, base_s


def _floor(
    ask: LookUpModel,
    whole: BaseModel,
    scores: Scores,
    samples: Samples,
    division: Division,
    seed: int,
) -> float:
    """The score that at most a few of each kind of outliers reach which int8 answers otherwise."""
    outliers = make_outliers(samples.take(division.select), seed)
    order = np.random.default_rng(seed).permutation(len(outliers))[:OUTLIERS]
    if not len(order):
        return 0.0
    seen = _looked(ask, whole, scores, outliers.samples.take(order)).scored(scores)
    wrong = np.where(seen.right | ~seen.near, np.float32(0), seen.scores)
    kinds = outliers.kinds[order]
    reached = [np.quantile(wrong[kinds == kind], REFUSED, method="higher") for kind in set(kinds)]
    highest = float(max(reached))
    return float(np.nextafter(np.float32(highest), np.float32(1))) if highest > 0 else 0.0


def _looked(ask: LookUpModel, whole: BaseModel, scores: Scores, rows: Samples) -> _Looked:
    (values,) = rows.inputs.values()
    parts = [
        ask(np.ascontiguousarray(values[start : start + BATCH_ROWS]))
        for start in range(0, len(values), BATCH_ROWS)
    ]
    return _Looked(
        np.concatenate([part.logits for part in parts]),
        np.concatenate([part.scores for part in parts]),
        np.concatenate([part.near for part in parts]),
        _own_values(whole, scores, rows),
    )


def _own_values(whole: BaseModel, scores: Scores, rows: Samples) -> np.ndarray:
    return np.concatenate([own for _, own in run_in_batches(whole, (), scores, rows.inputs)])


def _check_rows(whole: BaseModel, scores: Scores, samples: Samples) -> None:
    """Raises InvalidModelError where a row's values depend on the other rows of its batch."""
    some = samples.take(slice(COMPARED_ROWS))
    together = _own_values(whole, scores, some)
    alone = [
        _own_values(whole, scores, some.take(slice(row, row + 1))) for row in range(len(some))
    ]
    most = 1e-3 * max(1.0, float(np.abs(together).max(initial=0.0)))
    if not np.allclose(np.concatenate(alone), together, rtol=1e-2, atol=most):
        raise InvalidModelError(
            f"model '{whole.graph.name}' mixes the rows of a batch: early answers need rows that "
            "can leave it"
        )
