"""Streams with temporal locality: static caches against adapting ones (GATI, 7.2)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from brisk.execution import LoadedProgram
from brisk.exits.adaptation import AdaptationSettings, Adapter, Reference
from brisk.exits.adaptation.looking import look_at
from brisk.exits.adaptation.material import gather
from brisk.exits.cascade import Cascade
from brisk.exits.samples import Division, Samples
from brisk_client.benchmarks.exit_runs import BARE, Bench, Side, Version

PERIODS = 3
STATIC, ADAPTIVE = "static caches", "adaptive caches"
SAMPLED = 0.2
LEARNED_FROM, MEASURED = 20_000, 400
"""Requests of a period: before caches are trained again, and measured after that. The
paper's periods last a quarter of an hour, these less than the minute between two retrainings."""

LEAST_BRIGHT = 0.55


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One interval of a stream. ``outcome``: what adaptation did before it was measured.

    ``adapted``: the cascade that is served then. ``fits``: of each exit, the share of the stream
    that its predictor has right, whatever its selector thinks of it.
    """

    stream: str
    number: int
    sides: dict[str, Side]
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
    sampled: float = SAMPLED


def zipf_intervals(evaluation: Samples, alpha: float) -> Iterator[Interval]:
    """The dominant class changes with each of them.

    The inputs are evaluation images moved and darkened at random, so that no two are the same and
    that static caches find them somewhat unlike what they know.
    """
    random = np.random.default_rng(int(alpha * 10))
    for period in range(PERIODS):
        arriving, measured = (
            _draw(evaluation, alpha, period * 3, count, random)
            for count in (LEARNED_FROM, MEASURED)
        )
        yield Interval(f"Zipf {alpha}", arriving, measured)


def follow(
    bench: Bench,
    loaded: LoadedProgram,
    cascade: Cascade,
    training: Samples,
    division: Division,
    intervals: Iterable[Interval],
    half_life: float,
) -> Iterator[StreamRow]:
    """Of each interval: some of the requests are sampled, caches learn, latency is measured.

    ``half_life``: of a sample's weight, in intervals.
    """
    parts = (division.fit, division.tune, division.calibrate)
    reference = Reference("", *(training.take(rows[:300]) for rows in parts))
    adapter = Adapter(loaded, cascade, reference, AdaptationSettings(half_life_s=half_life))
    random = np.random.default_rng(0)
    for number, interval in enumerate(intervals):
        sampled = random.uniform(size=len(interval.arriving)) < interval.sampled
        adapter.take(interval.arriving.take(np.flatnonzero(sampled)).inputs, float(number))
        outcome = adapter.adapt(float(number))
        versions = {
            STATIC: Version(cascade, cascade.synchronous),
            ADAPTIVE: Version(adapter.cascade, cascade.synchronous),
        }
        yield StreamRow(
            *(interval.stream, number, bench.measure(versions, interval.measured, 1, quick=False)),
            "published" if outcome.cascade is not None else f"refused: {outcome.reason}",
            max(outcome.retraining_s, default=0.0),
            adapter.cascade,
            _fits(loaded, adapter.cascade, interval.measured),
        )


def _fits(loaded: LoadedProgram, cascade: Cascade, stream: Samples) -> tuple[float, ...]:
    material = gather(loaded, cascade, stream.inputs)
    right = look_at([exit_.network for exit_ in cascade.exits], material).right
    return tuple(float(one) for one in right.mean(1))


def _draw(
    samples: Samples, alpha: float, shift: int, count: int, random: np.random.Generator
) -> Samples:
    """``count`` inputs, the class of rank r with probability as r to the power of -α."""
    assert samples.labels is not None, "streams are drawn by class"
    classes = int(samples.labels.max()) + 1
    weights = np.arange(1, classes + 1) ** -alpha
    drawn = (random.choice(classes, count, p=weights / weights.sum()) + shift) % classes
    rows = np.array([random.choice(np.flatnonzero(samples.labels == one)) for one in drawn])
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
