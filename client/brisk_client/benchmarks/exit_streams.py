"""Zipf streams whose dominant class changes: static caches against adapting ones (GATI, 7.2.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brisk.execution import LoadedProgram
from brisk.exits.adaptation import AdaptationSettings, Adapter, Reference
from brisk.exits.cascade import Cascade
from brisk.exits.samples import Samples, divide
from brisk_client.benchmarks.exit_runs import BARE, Bench, Side, Version

PERIODS = 3
ALPHAS = (1.5, 3.0)
SAMPLED = 0.2
LEARNED_FROM, MEASURED = 5000, 100
"""Requests of a period: before caches are trained again, and measured after that."""

LEAST_BRIGHT = 0.55


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One period of a stream. ``outcome``: what adaptation did before it was measured."""

    alpha: float
    period: int
    sides: dict[str, Side]
    outcome: str
    retraining_s: float


def run_streams(
    bench: Bench,
    loaded: LoadedProgram,
    cascade: Cascade,
    training: Samples,
    evaluation: Samples,
) -> list[StreamRow]:
    """Each α's stream: requests arrive, a fifth is sampled, caches learn, latency is measured.

    The inputs are evaluation images moved and darkened at random, so that no two are the same and
    that static caches find them somewhat unlike what they know.
    """
    division = divide(len(training), 0)
    parts = (division.fit, division.tune, division.calibrate)
    reference = Reference("", *(training.take(rows[:300]) for rows in parts))
    rows = []
    for alpha in ALPHAS:
        adapter = Adapter(loaded, cascade, reference, AdaptationSettings(half_life_s=0.3))
        random = np.random.default_rng(int(alpha * 10))
        for period in range(PERIODS):
            shift = period * 3
            arriving = _draw(evaluation, alpha, shift, LEARNED_FROM, random)
            sampled = random.uniform(size=LEARNED_FROM) < SAMPLED
            adapter.take(arriving.take(np.flatnonzero(sampled)).inputs, float(period))
            outcome = adapter.adapt(float(period))
            stream = _draw(evaluation, alpha, shift, MEASURED, random)
            versions = {
                "static caches": Version(cascade, cascade.synchronous),
                "adaptive caches": Version(adapter.cascade, cascade.synchronous),
            }
            sides = bench.measure(versions, stream, 1, quick=False)
            did = "published" if outcome.cascade is not None else f"refused: {outcome.reason}"
            taken_s = max(outcome.retraining_s, default=0.0)
            rows.append(StreamRow(alpha, period, sides, did, taken_s))
    return rows


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


def mean_speed_up(rows: list[StreamRow], alpha: float, name: str) -> float:
    """Over all periods of a stream."""
    chosen = [row.sides for row in rows if row.alpha == alpha]
    bare = sum(sides[BARE].mean_s for sides in chosen)
    return bare / sum(sides[name].mean_s for sides in chosen)
