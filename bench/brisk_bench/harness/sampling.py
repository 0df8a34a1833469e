"""Summaries of repeated measurements, robust against other load on the machine."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Side = TypeVar("Side")
Sample = TypeVar("Sample")

REASON_CHARACTERS = 400


def in_rounds(
    sides: Iterable[Side],
    rounds: int,
    measure: Callable[[Side], Sample],
    *,
    uncounted: int = 0,
    failures: tuple[type[Exception], ...] = (),
) -> tuple[dict[Side, list[Sample]], dict[Side, str]]:
    """Measure each side once a round, after ``uncounted`` rounds that warm up.

    What slows the machine for a while slows all sides alike. Each round has an order of its own,
    drawn, the same in every run, since the order matters. A side that raises one of ``failures``
    is left out from then on; the second result says why.
    """
    samples: dict[Side, list[Sample]] = {side: [] for side in sides}
    reasons: dict[Side, str] = {}
    for turn in range(uncounted + rounds):
        for side in random.Random(turn).sample([*samples], len(samples)):
            try:
                sample = measure(side)
            except failures as error:
                reasons[side] = one_line(str(error))
                del samples[side]
                continue
            if turn >= uncounted:
                samples[side].append(sample)
    return samples, reasons


def one_line(text: str) -> str:
    """Put a message, which may be pages long, on one line of about REASON_CHARACTERS at most."""
    line = " ".join(text.split())
    return line if len(line) <= REASON_CHARACTERS else f"{line[:REASON_CHARACTERS]} …"


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary of samples, in the samples' unit.

    ``spread``: the interquartile range.
    ``least``: the least sample.
    ``count``: the number of samples.
    """

    median: float
    spread: float
    least: float
    count: int


def summarise(samples: Sequence[float]) -> Summary:
    """Summarise samples. Precondition: at least one sample."""
    if len(samples) == 1:
        return Summary(samples[0], 0.0, samples[0], 1)
    first, median, third = statistics.quantiles(samples, n=4, method="inclusive")
    return Summary(median, third - first, min(samples), len(samples))


def median_ratio(rounds: Sequence[tuple[float, float]]) -> float:
    """Return the median over rounds of ``a / b``, where a and b were measured one after the other.

    Pairing them cancels what slows a whole round down.
    """
    return statistics.median(a / b for a, b in rounds)


@dataclass(frozen=True, slots=True)
class Burst:
    """Consecutive inferences: wall time of each, processor time of all together."""

    wall_s: list[float]
    processor_s: float


def burst_row(bursts: Sequence[Burst]) -> dict[str, Any]:
    """Return the times of an inference for a report's row."""
    wall = summarise([seconds for burst in bursts for seconds in burst.wall_s])
    return {
        "median_ms": wall.median * 1e3,
        "spread_ms": wall.spread * 1e3,
        "least_ms": wall.least * 1e3,
        "processor_ms": sum(burst.processor_s for burst in bursts) / wall.count * 1e3,
        "runs": wall.count,
    }


@dataclass(frozen=True, slots=True)
class Pace:
    """How an engine's inferences compare with another's, in the median of rounds.

    ``theirs_ms``: of the other, the median inference.
    ``ratio``: over the other's, of the median inference.
    ``more_us``: the median inference less the other's.
    """

    theirs_ms: float
    ratio: float
    more_us: float


def pace_over(ours: Sequence[Burst], *bases: Sequence[Burst]) -> Pace:
    """Compare an engine's rounds with those of others, of which in each round the faster counts.

    Pairing cancels what slows a whole round down.
    """
    rounds = [
        (statistics.median(own.wall_s), min(statistics.median(each.wall_s) for each in others))
        for own, *others in zip(ours, *bases, strict=True)
    ]
    return Pace(
        1e3 * statistics.median(theirs for _, theirs in rounds),
        median_ratio(rounds),
        1e6 * statistics.median(own - theirs for own, theirs in rounds),
    )


def time_inferences(infer: Callable[[], Any], duration_s: float) -> list[float]:
    """Return the seconds of consecutive inferences, for ``duration_s`` seconds, at least three."""
    wall_s: list[float] = []
    started_s = time.perf_counter()
    while len(wall_s) < 3 or time.perf_counter() - started_s < duration_s:
        before_s = time.perf_counter()
        infer()
        wall_s.append(time.perf_counter() - before_s)
    return wall_s
