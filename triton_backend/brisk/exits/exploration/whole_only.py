"""Early answers of models that rows cannot leave in the middle, by approximate models.

Such models are embeddings and regressions, where an answer counts as the model's own within a
tolerance, and classifiers without a boundary at which a cache could stand. The model in int8, or a
smaller one that the user names, answers what it is sure of, the exact one the rest. Its floor
keeps out what outliers reach that it answers otherwise; thresholds are proved as for caches
(``brisk.exits.guarantee.calibration``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from brisk.errors import InvalidRequestError
from brisk.exits.base_model import (
    BATCH_ROWS,
    BaseModel,
    answers_of,
    load_graph,
    taps_of,
)
from brisk.exits.cascade import INT8, Cascade, Exit, Expected, Level, answer_form
from brisk.exits.cascade_file import unchanged
from brisk.exits.data.collecting import (
    bind_rows,
    check_batches,
    check_classes,
    check_outputs,
    settled_scores,
)
from brisk.exits.data.outliers import ROWS_OF_A_KIND, make_outliers
from brisk.exits.data.samples import Division, SampleGroups, Samples, divide
from brisk.exits.exploration.measuring import (
    BENCHMARK_ROWS,
    RUNS,
    WARM_UP,
    Between,
    Verification,
    benchmark,
    evaluation_seconds,
    repeat,
    seconds_of,
)
from brisk.exits.exploration.settings import ExplorationSettings, Progress
from brisk.exits.exploration.whole_models import above, approximate_models, floor_of, front
from brisk.exits.files.learning_record import WayTried
from brisk.exits.guarantee.calibration import (
    CascadeCount,
    Promise,
    Scored,
    in_order,
    joined,
    shared,
)
from brisk.exits.guarantee.proposals import calibrate
from brisk.exits.heads.exit_model import ExitModel, Judge, given
from brisk.exits.learning.approximate import ApproximateModel, Typical, memory_of
from brisk.exits.model_graph import ModelGraph, read_graph
from brisk.exits.scores import Scores, all_agreeing, find_scores, find_values
from brisk.settings import Tolerance

DOUBTED_SHARE = 0.5
"""The least share of ordinary rows that reach the floor that outliers ask for. With less nothing
is served: most of the gain would be gone, and the scores say little about what is out of
distribution."""


FIT_ROWS = 512
"""The number of rows by which the model is quantised and its answers recognised as classes."""

TYPICAL_ROWS = 256
"""The number of rows of data whose values say what is typical: texts may have a vector for each
word."""


@dataclass(frozen=True, slots=True, eq=False)
class ExploredWhole:
    """The result of an exploration of approximate models."""

    cascade: Cascade | None
    """The cascade of the fastest one; None if the model is better served without."""
    reason: str
    """The reason why there is no cascade; else empty."""
    verification: Verification | None = None
    ways: tuple[WayTried, ...] = ()
    """The approximate models that were timed, the best first."""


@dataclass(frozen=True, slots=True, eq=False)
class _Pair:
    """The exact model and an approximate one."""

    graph: ModelGraph
    scores: Scores
    bare: BaseModel
    """The exact model without stops."""
    base: BaseModel
    """The exact model, which stops at the scores."""
    approximate: ApproximateModel
    typical: Typical | None
    threads: int

    @property
    def label(self) -> str:
        """What the approximate model is called in reasons."""
        return "int8" if self.approximate.variant == INT8 else "the smaller model"

    @property
    def judge(self) -> Judge:
        return Judge.MARGIN if self.typical is None else Judge.TYPICAL

    def exit_model(self, floor: float) -> bytes:
        """Return the approximate model as an exit's ONNX model with a ``floor``."""
        return self.approximate.exit_model(floor, self.typical)

    def ready(self, model: bytes) -> ExitModel:
        """Open an ONNX model that ``exit_model`` has returned."""
        return self.approximate.opened(model, self.threads)

    def scored(self, exit_model: ExitModel, rows: SampleGroups) -> Scored:
        """Return how sure the approximate model is of ``rows``, and where the exact one agrees;
        the rows of each shape are together."""
        return joined([self._scored(exit_model, group) for group in rows.groups])

    def _scored(self, exit_model: ExitModel, rows: Samples) -> Scored:
        parts = []
        for start in range(0, len(rows), BATCH_ROWS):
            some = bind_rows(rows.take(slice(start, start + BATCH_ROWS)))
            found = exit_model(given(self.approximate.shape, some))
            exact = answers_of(self.base, self.scores, some)
            right = all_agreeing((found.logits, *found.others), exact, self.scores)
            parts.append(Scored(found.scores, right, found.near))
        return joined(parts)


def explore_whole(
    model_file: Path,
    samples: SampleGroups,
    tolerance: Tolerance | None,
    settings: ExplorationSettings,
    progress: Progress | None = None,
    folder: Path | None = None,
) -> ExploredWhole:
    """Quantise, find floors and thresholds, prove, and benchmark against the exact model.

    ``tolerance`` None: the answers are classes. ``folder``: for temporary copies of the model and
    rows that take much memory; None: the system's, and no rows. Raises InvalidModelError if the
    model does not allow it, or the smaller one of the settings cannot answer for it;
    InvalidRequestError if the samples are too few; ReplacedModelError if the model was replaced
    meanwhile.
    """
    with unchanged(model_file) as digest:
        progress = progress or Progress()
        return _explored(model_file, digest, samples, tolerance, settings, progress, folder)


def _explored(
    model_file: Path,
    digest: str,
    samples: SampleGroups,
    tolerance: Tolerance | None,
    settings: ExplorationSettings,
    progress: Progress,
    folder: Path | None,
) -> ExploredWhole:
    graph = read_graph(model_file)
    scores = (
        find_scores(graph, settings.output) if tolerance is None else find_values(graph, tolerance)
    )
    division = divide(samples, settings.seed, proves_newest=settings.proves_newest)
    pairs, reasons = _open_pairs(graph, scores, samples, division, settings, progress, folder)
    if not pairs:
        reason = " ".join(reasons) or "it is not among the variants"
        return ExploredWhole(None, f"the model in int8 is the one way there is, and {reason}")
    progress.stage("running both models", len(pairs))
    proved: list[tuple[_Pair, Cascade]] = []
    for pair in pairs:
        cascade = _proved(pair, samples, division, settings, len(pairs), digest, folder)
        progress.advance()
        if isinstance(cascade, str):
            reasons.append(cascade)
        else:
            proved.append((pair, cascade))
    if not proved:
        return ExploredWhole(None, "; ".join(reasons))
    progress.stage("benchmarking", 1)
    rows = division.tune[:BENCHMARK_ROWS]
    inputs = [
        bind_rows(samples.take(rows[place : place + 1]).largest) for place in range(len(rows))
    ]
    bare = pairs[0].bare
    timed = benchmark(bare, [(bare, cascade) for _, cascade in proved], inputs)
    progress.advance()
    (pair, cascade), verification = min(
        zip(proved, timed, strict=True), key=lambda each: each[1].cascade_s
    )
    ways = sorted((_way(cascade) for _, cascade in proved), key=lambda way: -way.speed_up)
    if verification.cascade_s < verification.base_s:
        return ExploredWhole(cascade, "", verification, tuple(ways))
    how = "in int8 the model" if pair.label == "int8" else "with a smaller one the model"
    reason = (
        f"{how} took {verification.cascade_s * 1e3:.2f} ms on average, exactly "
        f"{verification.base_s * 1e3:.2f} ms: it is better served as it is"
    )
    return ExploredWhole(None, reason, verification, tuple(ways))


def _way(cascade: Cascade) -> WayTried:
    (count,) = cascade.levels[0].count.exits
    early = count.answered / cascade.levels[0].count.inputs
    gain = cascade.expected.base_s / cascade.expected.mean_s
    return WayTried(cascade.exits[0].name, early, gain)


def _open_pairs(
    graph: ModelGraph,
    scores: Scores,
    samples: SampleGroups,
    division: Division,
    settings: ExplorationSettings,
    progress: Progress,
    folder: Path | None,
) -> tuple[list[_Pair], list[str]]:
    """Open the model with each approximate one, and return why there is none in int8.

    Raises InvalidModelError if the smaller model of the settings cannot answer for this one.
    """
    threads = settings.threads
    bare = load_graph(graph, threads)
    base = load_graph(graph, threads, taps_of((), scores, graph))
    check_outputs(bare, samples.largest)
    check_batches(base, scores, samples.largest)
    fit = samples.take(division.fit[:FIT_ROWS])
    progress.stage("quantising", 1)
    typical = None
    if scores.tolerance is None:
        scores = settled_scores(base, scores, samples.largest)
        values, needs_classes = _values(base, scores, fit), settings.needs_classes
        check_classes(values, scores, graph.name, needs_classes=needs_classes)
    else:
        some = samples.take(division.fit[:TYPICAL_ROWS])
        typical = Typical.of(_values(base, scores, some))
    found, reasons = approximate_models(graph, scores, fit.largest, settings, folder)
    progress.advance()
    pairs = [
        _Pair(graph, scores, bare, base, approximate, typical, threads) for approximate in found
    ]
    return pairs, reasons


def _proved(
    pair: _Pair,
    samples: SampleGroups,
    division: Division,
    settings: ExplorationSettings,
    candidates: int,
    digest: str,
    folder: Path | None,
) -> Cascade | str:
    """Return the cascade that held-out rows prove for the approximate model, or why there is none.

    ``candidates``: the approximate models of which one is chosen, which share the promise's error.
    """
    scores = pair.scores
    without_floor = pair.ready(pair.exit_model(0.0))
    tuned_on = samples.take(division.tune)
    tune = pair.scored(without_floor, tuned_on)
    agrees = float(tune.right.mean())
    verb = (
        "gives the model's class" if scores.tolerance is None else f"keeps to {scores.tolerance}"
    )
    unproved = (
        f"{pair.label} {verb} in {agrees:.1%} of the samples to tune with, which does not prove "
        f"{settings.accuracy:.1%}"
    )
    if scores.tolerance is not None and agrees < settings.accuracy:
        return unproved
    floor = _floor(pair, without_floor, samples.take(division.select), settings.seed, folder)
    passing = float((tune.scores >= floor).mean())
    if passing < DOUBTED_SHARE:
        return (
            f"out-of-distribution inputs that {pair.label} answers otherwise look like "
            f"{1 - passing:.0%} of the data"
        )
    held_out = pair.scored(without_floor, samples.take(division.calibrate))
    exit_, base_s = _as_exit(pair, floor, tuned_on.typical_row)
    saved_s = base_s - exit_.evaluation_s
    promises = [shared(each, candidates) for each in (settings.promise, *settings.stricter)]
    levels = _levels(above(tune, floor), above(held_out, floor), promises, saved_s)
    if not levels:
        return unproved
    missed = 1 - levels[0].count.exits[0].answered / levels[0].count.inputs
    return Cascade(
        model_digest=digest,
        scores=scores,
        exits=(exit_,),
        levels=levels,
        confidence=settings.confidence,
        expected=Expected(base_s, exit_.evaluation_s + missed * base_s),
        synchronous=True,
    )


def _levels(
    tune: Scored, held_out: Scored, promises: Sequence[Promise], saved_s: float
) -> tuple[Level, ...]:
    """Return what the held-out rows prove of ``promises``, the least strict first."""

    def value(count: CascadeCount) -> float:
        return count.saving_s([saved_s], [0.0])

    levels = []
    for promise in promises:
        proof = calibrate(in_order([tune]), in_order([held_out]), promise, value)
        if proof is None:
            break
        levels.append(Level(promise.accuracy, proof.thresholds, proof.count))
    return tuple(levels)


def _as_exit(pair: _Pair, floor: float, row: Samples) -> tuple[Exit, float]:
    """Return the approximate model as an exit in front of the exact one, and the exact one's time
    for a row, in seconds."""
    inputs = bind_rows(row)

    def run() -> object:
        return pair.bare.run(inputs)

    base_s = statistics.median(repeat(lambda _: seconds_of(run), WARM_UP, RUNS))
    model = pair.exit_model(floor)
    shape = pair.approximate.shape
    evaluation_s = evaluation_seconds(
        pair.ready(model), given(shape, inputs), Between(run, base_s)
    )
    exit_ = Exit(
        point=front(pair.graph),
        variant=pair.approximate.variant,
        shape=shape,
        form=answer_form(pair.scores),
        model=model,
        evaluation_s=evaluation_s,
        memory_bytes=memory_of(model, shape),
        saved_s=max(0.0, base_s - evaluation_s),
        overhead_s=evaluation_s,
        judge=pair.judge,
        threads=pair.threads,
    )
    return exit_, base_s


def _floor(
    pair: _Pair, without_floor: ExitModel, rows: SampleGroups, seed: int, folder: Path | None
) -> float:
    """Return the floor by outliers made of ``rows``, of each shape in proportion."""
    parts = []
    for group in rows.groups:
        count = math.ceil(ROWS_OF_A_KIND * len(group) / len(rows))
        parts.append(make_outliers(group, seed, of_a_kind=count, folder=folder))
    outliers = SampleGroups.of((part.samples for part in parts if len(part)), folder)
    if not len(outliers):
        return 0.0
    kinds = np.concatenate([part.kinds for part in parts if len(part)])
    return floor_of(pair.scored(without_floor, outliers), kinds)


def _values(base: BaseModel, scores: Scores, rows: SampleGroups) -> np.ndarray:
    """Return the exact model's distributions, [rows, classes], or values, [all, values], without
    those that are no numbers. Raises InvalidRequestError if none is left."""
    found = np.concatenate(
        [
            answers_of(base, scores, bind_rows(group.take(slice(start, start + BATCH_ROWS))))[
                0
            ].reshape(-1, scores.classes)
            for group in rows.groups
            for start in range(0, len(group), BATCH_ROWS)
        ]
    )
    numbers = found[np.isfinite(found).all(1)]
    if not len(numbers):
        raise InvalidRequestError(
            f"output '{scores.value}' is NaN or infinite for all of {len(rows)} samples: expected "
            "finite values"
        )
    return numbers
