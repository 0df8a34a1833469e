"""The series that this stub shows on Triton's metrics endpoint. Each call is a round trip.

Triton (24.10) keeps one counter for all who ask for the same name and labels, but counts its users
within each family object, and every stub has such objects of its own: the first stub that gave a
shared series back freed it under the others, whose next increment was written to freed memory of
the server. So no series is ever shared: each carries its stub's process number.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import triton_python_backend_utils as pb_utils

from brisk.telemetry.exposition import PublishedSeries

STUB_LABEL = "stub"
WORKER_LABEL = "worker"

_Labels = tuple[tuple[str, str], ...]


class _Family(NamedTuple):
    """Triton's family, and its series by their labels. A series lives as long as its family."""

    native: Any
    series: dict[_Labels, Any]


class SeriesTable:
    """Used by one thread at a time. Raises Triton's own exceptions, of no common class."""

    def __init__(self) -> None:
        self._own = (STUB_LABEL, str(os.getpid()))
        self._families: dict[tuple[str, str], _Family] = {}

    def __len__(self) -> int:
        return sum(len(family.series) for family in self._families.values())

    def publish(self, series: PublishedSeries) -> None:
        """Add to a counter, or say what a gauge is now."""
        worker = _worker(series)
        family = self._families.get((series.name, worker))
        if family is None:
            native = pb_utils.MetricFamily(
                name=series.name,
                description=series.help,
                kind=(
                    pb_utils.MetricFamily.GAUGE
                    if series.is_gauge
                    else pb_utils.MetricFamily.COUNTER
                ),
            )
            family = self._families[series.name, worker] = _Family(native, {})
        metric = family.series.get(series.labels)
        if metric is None:
            labels = dict((*series.labels, self._own))
            metric = family.series[series.labels] = family.native.Metric(labels=labels)
        if series.is_gauge:
            metric.set(series.value)
        else:
            metric.increment(series.value)

    def withdraw_gauges(self, worker: str) -> None:
        """What ``worker`` holds is told by another stub now."""
        for name, told_by in list(self._families):
            if told_by == worker:
                del self._families[name, told_by]

    def withdraw(self) -> None:
        """All series; Triton has deleted them when this returns."""
        self._families.clear()


def _worker(series: PublishedSeries) -> str:
    """The worker that a gauge tells of, empty for a counter: those are never withdrawn alone."""
    return dict(series.labels)[WORKER_LABEL] if series.is_gauge else ""
