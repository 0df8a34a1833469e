"""Samples as Prometheus series: what ends up on Triton's metrics endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from brisk.telemetry.metrics import BOUNDS_NS, Kind, Metric
from brisk.telemetry.statistics import Sample

DEFAULT_INTERVAL_S = 5.0
"""Between two publications, where ``$BRISK_METRICS_INTERVAL_S`` says nothing else."""


class PublishedSeries(NamedTuple):
    """``is_gauge``: ``value`` is what holds now; else it is to be added."""

    name: str
    help: str
    labels: tuple[tuple[str, str], ...]
    is_gauge: bool
    value: float


def published_names(metric: Metric) -> tuple[str, ...]:
    """The names on the endpoint: a histogram has three, as Prometheus' own have.

    A histogram of Triton's own takes one duration a call, which is a round trip, so a histogram's
    series are published as counters; ``histogram_quantile`` reads names and labels, not types.
    """
    if metric.kind is not Kind.HISTOGRAM:
        return (metric.name,)
    return tuple(f"{metric.name}_{part}" for part in ("bucket", "sum", "count"))


def published(sample: Sample) -> Iterator[PublishedSeries]:
    """The series of a sample; classes of a histogram that have nothing to add are left out."""
    metric = sample.metric
    labels = tuple(zip(metric.labels, sample.labels, strict=True))
    if metric.kind is not Kind.HISTOGRAM:
        scale = 1e-9 if metric.kind is Kind.SECONDS else 1
        value = sample.values[0] * scale
        yield PublishedSeries(metric.name, metric.help, labels, metric.kind is Kind.GAUGE, value)
        return
    bucket, total, count = published_names(metric)
    *classes, sum_ns = sample.values
    bounds = [f"{bound / 1e9:g}" for bound in BOUNDS_NS] + ["+Inf"]
    for bound, value in zip(bounds, accumulate(classes), strict=True):
        if value:
            yield PublishedSeries(bucket, metric.help, (*labels, ("le", bound)), False, value)
    yield PublishedSeries(total, metric.help, labels, False, sum_ns / 1e9)
    yield PublishedSeries(count, metric.help, labels, False, sum(classes))
