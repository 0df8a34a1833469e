"""Summaries of repeated measurements, robust against a machine that others use too."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Summary:
    """Median and interquartile range of samples, in the samples' unit."""

    median: float
    spread: float
    least: float
    count: int


def summarise(samples: Sequence[float]) -> Summary:
    """Precondition: at least one sample."""
    if len(samples) == 1:
        return Summary(samples[0], 0.0, samples[0], 1)
    first, median, third = statistics.quantiles(samples, n=4, method="inclusive")
    return Summary(median, third - first, min(samples), len(samples))


def median_ratio(rounds: Sequence[tuple[float, float]]) -> float:
    """The median over rounds of ``a / b``, where a and b were measured one after the other.

    Pairing them cancels what slows a whole round down.
    """
    return statistics.median(a / b for a, b in rounds)


@dataclass(frozen=True, slots=True)
class Burst:
    """Consecutive inferences: wall time of each, processor time of all together."""

    wall_s: list[float]
    processor_s: float


def burst_row(bursts: Sequence[Burst]) -> dict[str, Any]:
    """Times of an inference in a report's row."""
    wall = summarise([seconds for burst in bursts for seconds in burst.wall_s])
    return {
        "median_ms": wall.median * 1e3,
        "spread_ms": wall.spread * 1e3,
        "least_ms": wall.least * 1e3,
        "processor_ms": sum(burst.processor_s for burst in bursts) / wall.count * 1e3,
        "runs": wall.count,
    }


def burst_rounds(ours: Sequence[Burst], *bases: Sequence[Burst]) -> list[tuple[float, float]]:
    """Of each round the median inference, and the least of the bases' medians."""
    return [
        (statistics.median(own.wall_s), min(statistics.median(each.wall_s) for each in others))
        for own, *others in zip(ours, *bases, strict=True)
    ]


def time_inferences(infer: Callable[[], Any], duration_s: float) -> list[float]:
    """Seconds of each of consecutive inferences, for ``duration_s`` seconds, at least three."""
    wall_s: list[float] = []
    started_s = time.perf_counter()
    while len(wall_s) < 3 or time.perf_counter() - started_s < duration_s:
        before_s = time.perf_counter()
        infer()
        wall_s.append(time.perf_counter() - before_s)
    return wall_s
