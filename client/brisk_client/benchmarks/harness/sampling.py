"""Summaries of repeated measurements, robust against a machine that others use too."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


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
