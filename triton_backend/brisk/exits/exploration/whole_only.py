"""The way to early answers of models that rows cannot leave in the middle: the model in int8.

That is of embeddings and regressions, where an answer counts as the model's own within a
tolerance, and of classifiers without a boundary at which a cache could stand. The model in int8
answers what it is sure of, the exact one the rest. Its floor keeps out what outliers reach that it
answers otherwise; thresholds are proved as for caches (``brisk.exits.guarantee.calibration``).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from brisk.errors import InvalidModelError
from brisk.exits.base_model import (
    BATCH_ROWS,
    BaseModel,
    load_graph,
    run_in_batches,
    taps_of,
)
from brisk.exits.cascade import INT8, Cascade, Exit, Expected, Level
from brisk.exits.cascade_file import digest_of
from brisk.exits.data.collecting import (
    COMPARED_ROWS,
    bind_rows,
    check_classes,
    settled_scores,
)
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
from brisk.exits.files.learning_record import WayTried
from brisk.exits.guarantee.calibration import CascadeCount, Scored, calibrate
from brisk.exits.heads.lookup import REFUSED
from brisk.exits.heads.lookup_model import Judge, LookUpModel, given
from brisk.exits.learning.quantising import Quantised, Typical, memory_of, quantised
from brisk.exits.model_graph import ModelGraph, read_graph
from brisk.exits.scores import Scores, agreeing, find_scores, find_values
from brisk.settings import Tolerance

RACED_ROWS = 320

DOUBTED_SHARE = 0.5
"""Where more of the ordinary rows are under the floor that outliers ask for, nothing is served:
most of the gain would be gone, and the scores say little about what is strange."""


@dataclass(frozen=True, slots=True, eq=False)
class ExploredWhole:
    """``cascade`` is None where the model is better served without; ``reason`` says why. ``ways``:
    the one that there is, once it is timed."""

    cascade: Cascade | None
    reason: str
    verification: Verification | None = None
    ways: tuple[WayTried, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Looked:
    """Rows through the model in int8: its ``answers`` [rows, classes], their ``marks`` and whether
    they are ``near`` [rows], and what the exact model says."""

    answers: np.ndarray
    marks: np.ndarray
    near: np.ndarray
    own: np.ndarray

    def scored(self, scores: Scores, floor: float = 0.0) -> Scored:
        """Below ``floor`` nothing is answered."""
        kept = np.where(self.marks < floor, np.float32(0), self.marks)
        return Scored(kept, agreeing(self.answers, self.own, scores), self.near)


@dataclass(frozen=True, slots=True, eq=False)
class _Pair:
    """The exact model and the one in int8. ``bare`` stops nowhere, ``base`` at the scores.
    ``ask``: the one in int8, without a floor."""

    graph: ModelGraph
    scores: Scores
    bare: BaseModel
    base: BaseModel
    made: Quantised
    typical: Typical | None
    ask: LookUpModel
    threads: int

    @property
    def judge(self) -> Judge:
        return Judge.MARGIN if self.typical is None else Judge.TYPICAL

    def looked(self, rows: Samples) -> _Looked:
        parts = []
        for start in range(0, len(rows), BATCH_ROWS):
            some = rows.take(slice(start, start + BATCH_ROWS))
            parts.append(self.ask(given(self.made.shape, some.inputs)))
        return _Looked(
            np.concatenate([part.logits for part in parts]),
            np.concatenate([part.scores for part in parts]),
            np.concatenate([part.near for part in parts]),
            _own(self.base, self.scores, rows),
        )


def explore_whole(
    model_file: Path,
    samples: Samples,
    tolerance: Tolerance | None,
    settings: ExplorationSettings,
    progress: Progress | None = None,
) -> ExploredWhole:
    """Quantise, find a floor and thresholds, prove, and race with the exact model.

    ``tolerance`` None: the answers are classes. Raises InvalidModelError where the model cannot be
    had so, InvalidRequestError where the samples are too few.
    """
    progress = progress or Progress()
    graph, threads = read_graph(model_file), settings.threads
    scores = (
        find_scores(graph, settings.output) if tolerance is None else find_values(graph, tolerance)
    )
    division = divide(samples, settings.seed, proves_newest=settings.proves_newest)
    bare = load_graph(graph, threads)
    base = load_graph(graph, threads, taps_of((), scores, graph))
    _check_rows(base, scores, samples)
    fit = samples.take(division.fit)
    progress.stage("quantising", 1)
    if tolerance is None:
        scores = settled_scores(base, scores, samples)
    own = _own(base, scores, fit)
    if tolerance is None:
        check_classes(own, scores, graph.name)
    try:
        made = quantised(graph, scores, fit.inputs)
    except ValueError as error:
        return ExploredWhole(None, f"the model in int8 is the one way there is, and {error}")
    typical = None if tolerance is None else Typical.of(own)
    ask = _ready(made, made.look_up(0.0, typical), threads)
    pair = _Pair(graph, scores, bare, base, made, typical, ask, threads)
    progress.advance()
    progress.stage("running both models", 1)
    found = _proved(pair, samples, division, settings, digest_of(model_file))
    progress.advance()
    if isinstance(found, str):
        return ExploredWhole(None, found)
    progress.stage("racing", 1)
    rows = division.tune[:RACED_ROWS]
    inputs = [bind_rows(samples.take(slice(row, row + 1))) for row in rows]
    [verification] = race(bare, [(bare, found)], inputs)
    progress.advance()
    (count,) = found.levels[0].count.exits
    early = count.answered / found.levels[0].count.inputs
    gain = found.expected.base_s / found.expected.mean_s
    ways = (WayTried(found.exits[0].name, early, gain),)
    if verification.cascade_s < verification.base_s:
        return ExploredWhole(found, "", verification, ways)
    reason = (
        f"in int8 the model took {verification.cascade_s * 1e3:.2f} ms on average, exactly "
        f"{verification.base_s * 1e3:.2f} ms: it is better served as it is"
    )
    return ExploredWhole(None, reason, verification, ways)


def _proved(
    pair: _Pair,
    samples: Samples,
    division: Division,
    settings: ExplorationSettings,
    digest: str,
) -> Cascade | str:
    """What the held-out rows prove of the model in int8; in words why there is nothing."""
    scores = pair.scores
    tune = pair.looked(samples.take(division.tune))
    agrees = float(tune.scored(scores).right.mean())
    kept = (
        "gives the model's class" if scores.tolerance is None else f"keeps to {scores.tolerance}"
    )
    unproved = (
        f"int8 {kept} in {agrees:.1%} of the samples to tune with, which does not prove "
        f"{settings.accuracy:.1%}"
    )
    if scores.tolerance is not None and agrees < settings.accuracy:
        return unproved
    floor = _floor(pair, samples, division, settings.seed)
    passing = float((tune.marks >= floor).mean())
    if passing < DOUBTED_SHARE:
        return (
            f"strange inputs that int8 answers otherwise look like {1 - passing:.0%} of the data"
        )
    held_out = pair.looked(samples.take(division.calibrate))
    row = division.tune[0]
    exit_, base_s = _as_exit(pair, floor, samples.take(slice(row, row + 1)))
    saved_s = base_s - exit_.lookup_s
    levels = _levels(tune.scored(scores, floor), held_out.scored(scores, floor), settings, saved_s)
    if not levels:
        return unproved
    missed = 1 - levels[0].count.exits[0].answered / levels[0].count.inputs
    return Cascade(
        model_digest=digest,
        scores=scores,
        exits=(exit_,),
        levels=levels,
        confidence=settings.confidence,
        expected=Expected(base_s, exit_.lookup_s + missed * base_s),
        synchronous=True,
    )


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
    for promise in (settings.promise, *settings.stricter):
        proved = calibrate(tuning, proving, promise, value)
        if proved is None:
            break
        found.append(Level(promise.accuracy, proved.thresholds, proved.count))
    return tuple(found)


def _as_exit(pair: _Pair, floor: float, row: Samples) -> tuple[Exit, float]:
    """The model in int8 in front of the exact one, and what that takes for a row, seconds."""
    inputs = bind_rows(row)

    def run() -> object:
        return pair.bare.run(inputs)

    base_s = statistics.median(repeat(lambda _: taken_s(run), WARM_UP, RUNS))
    model = pair.made.look_up(floor, pair.typical)
    shape, classes = pair.made.shape, pair.scores.classes
    ready = _ready(pair.made, model, pair.threads)
    taken = look_up_seconds(ready, given(shape, inputs), Between(run, base_s))
    found = Exit(
        *(front(pair.graph), INT8, shape, classes, model, taken),
        *(memory_of(model, shape), max(0.0, base_s - taken), taken),
        judge=pair.judge,
        threads=pair.threads,
    )
    return found, base_s


def _ready(made: Quantised, model: bytes, threads: int) -> LookUpModel:
    return LookUpModel(model, made.shape, made.classes, threads, is_whole=True)


def _floor(pair: _Pair, samples: Samples, division: Division, seed: int) -> float:
    """The mark that at most a few of each kind of outliers reach which int8 answers otherwise."""
    outliers = make_outliers(samples.take(division.select), seed)
    order = np.random.default_rng(seed).permutation(len(outliers))[:OUTLIERS]
    if not len(order):
        return 0.0
    seen = pair.looked(outliers.samples.take(order)).scored(pair.scores)
    wrong = np.where(seen.right | ~seen.near, np.float32(0), seen.scores)
    kinds = outliers.kinds[order]
    reached = [np.quantile(wrong[kinds == kind], REFUSED, method="higher") for kind in set(kinds)]
    highest = float(max(reached))
    return float(np.nextafter(np.float32(highest), np.float32(1))) if highest > 0 else 0.0


def _own(base: BaseModel, scores: Scores, rows: Samples) -> np.ndarray:
    """What the exact model answers."""
    return np.concatenate([own for _, own in run_in_batches(base, (), scores, rows.inputs)])


def _check_rows(base: BaseModel, scores: Scores, samples: Samples) -> None:
    """Raises InvalidModelError where a row's answer depends on the other rows of its batch."""
    some = samples.take(slice(COMPARED_ROWS))
    together = _own(base, scores, some)
    alone = [_own(base, scores, some.take(slice(row, row + 1))) for row in range(len(some))]
    most = 1e-3 * max(1.0, float(np.abs(together).max(initial=0.0)))
    if not np.allclose(np.concatenate(alone), together, rtol=1e-2, atol=most):
        raise InvalidModelError(
            f"model '{base.graph.name}' mixes the rows of a batch: early answers need rows that "
            "can leave it"
        )
