"""Brisk's series on Triton's metrics endpoint, published by a thread: each call is a round trip.

Every stub publishes what it counted itself. What a worker counted is published by one stub of each
server, which the worker chooses; when that stub goes, another is told everything anew.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import triton_python_backend_utils as pb_utils

from brisk.protocol.records import Sample, StatisticsTold
from brisk.telemetry.statistics import (
    PublishedSeries,
    Statistics,
    published,
)

PAUSE_S = 0.001
"""Between two calls. A call keeps the interpreter's lock for its round trip, some 0.1 ms; without
a pause a request could wait for the lock for as long as the interpreter's switch interval."""

CLOSE_TIMEOUT_S = 5.0
OWN_NEWS = 0

_Labels = tuple[tuple[str, str], ...]


class Publisher:
    """Every ``interval_s``: asks the workers for news, publishes what has come meanwhile.

    Triton (24.10) keeps one counter for all who ask for the same name and labels, but counts its
    users within each family object, and every stub has such objects of its own: the first stub
    that gave a shared series back freed it under the others, whose next increment was written to
    freed memory of the server. So no series is ever shared: each carries its stub's process
    number. A series lives as long as its family's object.
    """

    def __init__(
        self, statistics: Statistics, log: Callable[[str, str], None], interval_s: float
    ) -> None:
        self._statistics = statistics
        self._log = log
        self._interval_s = interval_s
        self._told: deque[StatisticsTold] = deque()
        self._own_label = ("stub", str(os.getpid()))
        self._families: dict[tuple[str, str], tuple[Any, dict[_Labels, Any]]] = {}
        """Triton's family and its metrics by labels; by name and, of a gauge, the worker that it
        tells of."""
        self._lock = threading.Lock()  # of the families, and of the decision to publish no more
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, ask: Callable[[], None]) -> None:
        """Begin to ask. ``ask`` makes the workers report, sooner or later, what ``take`` is to be
        given."""
        if self._interval_s:
            self._thread = threading.Thread(
                target=self._run, args=(ask,), name="brisk-metrics", daemon=True
            )
            self._thread.start()

    def take(self, told: StatisticsTold) -> None:
        """A worker's answer; any thread."""
        self._told.append(told)

    def close(self) -> None:
        """Publish no more, and give the series back; also while a worker does not read."""
        self._closing.set()
        with self._lock:
            self._families.clear()
        if self._thread is not None:
            self._thread.join(timeout=CLOSE_TIMEOUT_S)

    def _run(self, ask: Callable[[], None]) -> None:
        try:
            while not self._closing.wait(self._interval_s):
                ask()
                self._publish(self._statistics.take_news(OWN_NEWS))
                while self._told and not self._closing.is_set():
                    report = self._told.popleft()
                    if not report.is_chosen:
                        self._withdraw_gauges(report.worker)
                    self._publish(report.samples)
        except Exception as error:  # noqa: BLE001  # Triton's own, of no common class
            self._log("warning", f"no more metrics: {type(error).__name__}: {error}")

    def _publish(self, samples: Iterable[Sample]) -> None:
        """Ends early where the stub is closing: whatever is told is withdrawn then."""
        for sample in samples:
            for series in published(sample):
                self._closing.wait(PAUSE_S)
                with self._lock:
                    if self._closing.is_set():
                        return
                    self._add(series)

    def _add(self, series: PublishedSeries) -> None:
        """Add to a counter, or set a gauge. The lock is held."""
        worker = dict(series.labels)["worker"] if series.is_gauge else ""
        key = series.name, worker
        if key not in self._families:
            kinds = pb_utils.MetricFamily
            kind = kinds.GAUGE if series.is_gauge else kinds.COUNTER
            new_family = kinds(name=series.name, description=series.help, kind=kind)
            self._families[key] = new_family, {}
        family, metrics = self._families[key]
        metric = metrics.get(series.labels)
        if metric is None:
            labels = dict((*series.labels, self._own_label))
            metric = metrics[series.labels] = family.Metric(labels=labels)
        if series.is_gauge:
            metric.set(series.value)
        else:
            metric.increment(series.value)

    def _withdraw_gauges(self, worker: str) -> None:
        """What ``worker`` holds is told by another stub now."""
        with self._lock:
            for key in list(self._families):
                if key[1] == worker:
                    del self._families[key]
