"""Streams with temporal locality: static caches against adapting ones (GATI, 7.2).

Requests that are measured show other images than those that caches learn from, and both others
than those that trained the network and its caches. Adaptation goes as in the product: its
settings, its reference, its interval, its share of the requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from brisk.exits.adaptation.adapter import Adapter
from brisk.exits.adaptation.features import gather, look_at
from brisk.exits.adaptation.reference import write_reference
from brisk.exits.adaptation.retraining import AdaptationSettings
from brisk.exits.base_model import BaseModel
from brisk.exits.cascade import Cascade
from brisk.exits.data.samples import Samples
from brisk.exits.heads.lookup import network_of
from brisk.runtime.settings import ADAPTATION_S, SAMPLED_SHARE
from brisk_client.benchmarks.exits.data import ExitCase
from brisk_client.benchmarks.exits.runs import BARE, ExitBench, ExitSide, Version

PERIODS = 3
STATIC, ADAPTIVE = "static caches", "adaptive caches"
LEARNED_FROM, MEASURED = 20_000, 400
"""Requests of a period: in the minute before caches are trained again, and measured after that.
The paper's periods last a quarter of an hour."""

SHARE_MEASURED = 0.25
"""Of a stream's images; nothing is learned from these."""

ARRIVALS = 12
"""Of an interval's samples, in turn: a worker's thread writes some at a time."""

LEAST_BRIGHT = 0.55


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One interval of a stream. ``outcome``: what adaptation did before it was measured.

    ``adapted``: the cascade that is served then. ``fits``: of each exit, the share of the stream
    that its predictor has right, whatever its selector thinks of it.
    """

    stream: str
    number: int
    sides: dict[str, ExitSide]
    outcome: str
    retraining_s: float
    adapted: Cascade
    fits: tuple[float, ...]

    def where(self) -> str:
        """What the speed-up is made of, in words."""
        side, base_s = self.sides[ADAPTIVE], self.adapted.expected.base_s
        parts = []
        for index, exit_ in enumerate(self.adapted.exits):
            reached = 1 - exit_.saved_s / base_s
            state = "" if math.isfinite(self.adapted.levels[0].thresholds[index]) else ", off"
            parts.append(
                f"{exit_.name} (at {reached:.0%} of the model, look-up "
                f"{exit_.lookup_s / base_s:.1%}{state}) answers {side.share(index):.0%}, "
                f"its predictor is right in {self.fits[index]:.0%}"
            )
        return "; ".join([*parts, f"the model itself {1 - side.early:.0%}"])


@dataclass(frozen=True, slots=True, eq=False)
class Interval:
    """Between two retrainings: requests ``arriving``, of which caches learn from a share that is
    ``sampled``, then those that are ``measured``."""

    stream: str
    arriving: Samples
    measured: Samples
    sampled: float = SAMPLED_SHARE


def divided(streamed: Samples) -> tuple[Samples, Samples]:
    """Images to learn from, and others to measure with; of every class the same share."""
    assert streamed.labels is not None, "streams are drawn by class"
    random = np.random.default_rng(0)
    learned, measured = [], []
    for one in np.unique(streamed.labels):
        rows = random.permutation(np.flatnonzero(streamed.labels == one))
        kept = round(SHARE_MEASURED * len(rows))
        measured.append(rows[:kept])
        learned.append(rows[kept:])
    return streamed.take(np.concatenate(learned)), streamed.take(np.concatenate(measured))


def zipf_intervals(streamed: Samples, alpha: float) -> Iterator[Interval]:
    """The dominant class changes with each of them.

    The inputs are images moved and darkened at random, so that no two are the same and that static
    caches find them somewhat unlike what they know.
    """
    random = np.random.default_rng(int(alpha * 10))
    parts = divided(streamed)
    for period in range(PERIODS):
        arriving, measured = (
            _draw(part, alpha, period * 3, count, random)
            for part, count in zip(parts, (LEARNED_FROM, MEASURED), strict=True)
        )
        yield Interval(f"Zipf {alpha}", arriving, measured)


def follow(
    bench: ExitBench,
    base: BaseModel,
    cascade: Cascade,
    case: ExitCase,
    intervals: Iterable[Interval],
) -> Iterator[StreamRow]:
    """Of each interval: some of the requests are sampled, caches learn, latency is measured."""
    with TemporaryDirectory() as folder:
        reference = write_reference(
            *(Path(folder) / "model.reference", cascade.model_digest, case.training),
            *(case.division, case.more_to_fit),
        )
    adapter = Adapter(base, cascade, reference, AdaptationSettings())
    random = np.random.default_rng(0)
    for number, interval in enumerate(intervals):
        is_sampled = random.uniform(size=len(interval.arriving)) < interval.sampled
        for turn, rows in enumerate(np.array_split(np.flatnonzero(is_sampled), ARRIVALS)):
            arrived_s = (number + (turn + 1) / ARRIVALS) * ADAPTATION_S
            adapter.take(interval.arriving.take(rows).inputs, arrived_s)
        outcome = adapter.adapt((number + 1) * ADAPTATION_S)
        versions = {
            STATIC: Version(cascade, cascade.synchronous),
            ADAPTIVE: Version(adapter.cascade, cascade.synchronous),
        }
        yield StreamRow(
            *(interval.stream, number, bench.measure(versions, interval.measured, 1, quick=False)),
            "published" if outcome.cascade is not None else f"refused: {outcome.reason}",
            max(outcome.retraining_s, default=0.0),
            adapter.cascade,
            _fits(base, adapter.cascade, interval.measured),
        )


def _fits(base: BaseModel, cascade: Cascade, stream: Samples) -> tuple[float, ...]:
    material = gather(base, cascade, stream.inputs)
    right = look_at([network_of(exit_) for exit_ in cascade.exits], material).right
    return tuple(float(one) for one in right.mean(1))


def _draw(
    samples: Samples, alpha: float, shift: int, count: int, random: np.random.Generator
) -> Samples:
    """``count`` inputs, the class of rank r with probability as r to the power of -α."""
    assert samples.labels is not None, "streams are drawn by class"
    classes = int(samples.labels.max()) + 1
    weights = np.arange(1, classes + 1) ** -alpha
    drawn = (random.choice(classes, count, p=weights / weights.sum()) + shift) % classes
    of_class = [np.flatnonzero(samples.labels == one) for one in range(classes)]
    rows = np.array([random.choice(of_class[one]) for one in drawn])
    name, images = next(iter(samples.inputs.items()))
    moved = np.stack([_varied(images[row], random) for row in rows])
    return Samples({name: moved}, samples.labels[rows])


def _varied(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    down, right = random.integers(-2, 3, 2)
    bright = np.float32(random.uniform(LEAST_BRIGHT, 1.0))
    return np.asarray(np.roll(image, (down, right), (1, 2)) * bright)


def mean_speed_up(rows: Sequence[StreamRow], name: str) -> float:
    """Over all intervals of a stream."""
    bare = sum(row.sides[BARE].mean_s for row in rows)
    return bare / sum(row.sides[name].mean_s for row in rows)
