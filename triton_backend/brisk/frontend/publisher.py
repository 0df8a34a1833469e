"""Publishes statistics on Triton's metrics endpoint, from a thread: each call is a round trip.

Every stub publishes what it counted itself and its share of the worker's news; Triton adds up
what the stubs of a server say of the same series. Its series go with the last stub that has one.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import triton_python_backend_utils as pb_utils

from brisk.errors import InvalidConfigurationError
from brisk.telemetry import METRICS, Sample, Statistics
from brisk.telemetry.exposition import PublishedSeries, published
from brisk.wire.records import SampleRecord, StatisticsTold

DEFAULT_INTERVAL_S = 0.0
"""Off: a tritonserver of 24.10 was seen to crash in its Python backend as a model was unloaded
that had published metrics a moment before."""

LARGEST_INTERVAL_S = 3600.0
OWN_NEWS = 0


def publishing_interval_s() -> float:
    """``$BRISK_METRICS_INTERVAL_S``, 0: no metrics are published.

    Raises InvalidConfigurationError where it is no number from 0 to LARGEST_INTERVAL_S.
    """
    text = os.environ.get("BRISK_METRICS_INTERVAL_S", "")
    try:
        value = float(text) if text else DEFAULT_INTERVAL_S
    except ValueError:
        value = -1.0
    if not 0 <= value <= LARGEST_INTERVAL_S:
        raise InvalidConfigurationError(
            f"BRISK_METRICS_INTERVAL_S must be a number of seconds from 0 (no metrics) to "
            f"{LARGEST_INTERVAL_S:.0f}, not '{text}'"
        )
    return value


class Publisher:
    """Every ``interval_s``: asks the workers for news, publishes what has come meanwhile."""

    def __init__(
        self,
        statistics: Statistics,
        log: Callable[[str, str], None],
        interval_s: float,
    ) -> None:
        self._statistics = statistics
        self._log = log
        self._interval_s = interval_s
        self._told: deque[SampleRecord] = deque()
        self._families: dict[str, Any] = {}
        self._series: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, ask: Callable[[], None]) -> None:
        """``ask`` makes the workers tell, sooner or later, what ``take`` is to be given."""
        if self._interval_s:
            self._thread = threading.Thread(
                target=self._run, args=(ask,), name="brisk-metrics", daemon=True
            )
            self._thread.start()

    def take(self, told: StatisticsTold) -> None:
        """The worker's answer; any thread."""
        self._told.extend(told.samples)

    def close(self) -> None:
        """Publish no more, and give the series back."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        self._series.clear()
        self._families.clear()

    def _run(self, ask: Callable[[], None]) -> None:
        try:
            while not self._closing.wait(self._interval_s):
                ask()
                self._publish(self._statistics.take_news(OWN_NEWS))
                self._publish(self._worker_news())
        except Exception as error:  # noqa: BLE001  # Triton's own, of no common class
            self._log("warning", f"no more metrics: {type(error).__name__}: {error}")

    def _worker_news(self) -> Iterable[Sample]:
        while self._told:
            record = self._told.popleft()
            metric = METRICS.get(record.metric)
            if metric is not None:
                yield Sample(metric, record.labels, record.values)

    def _publish(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            for series in published(sample):
                metric = self._metric(series)
                if series.is_gauge:
                    metric.set(series.value)
                else:
                    metric.increment(series.value)

    def _metric(self, series: PublishedSeries) -> Any:
        key = (series.name, series.labels)
        metric = self._series.get(key)
        if metric is None:
            family = self._families.get(series.name)
            if family is None:
                kind = (
                    pb_utils.MetricFamily.GAUGE
                    if series.is_gauge
                    else pb_utils.MetricFamily.COUNTER
                )
                family = self._families[series.name] = pb_utils.MetricFamily(
                    name=series.name, description=series.help, kind=kind
                )
            metric = self._series[key] = family.Metric(labels=dict(series.labels))
        return metric
