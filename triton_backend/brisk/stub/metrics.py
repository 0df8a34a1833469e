"""Brisk's series on Triton's metrics endpoint, published by a thread: each call is a round trip.

Every stub publishes its own counts. A worker's counts are published by one stub of each server,
which the worker chooses; when that stub ends, the worker sends everything to another one again.
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
"""The pause before each call. A call keeps the interpreter's lock for its round trip, some 0.1 ms;
without a pause a request could wait for the lock for the interpreter's whole switch interval."""

LONGEST_PAUSE_S = 600.0
"""The longest time between two attempts while Triton takes nothing: it doubles each time."""

CLOSE_TIMEOUT_S = 5.0
OWN_NEWS = 0

_Labels = tuple[tuple[str, str], ...]


class Publisher:
    """A thread that, every ``interval_s``, asks the workers for news and publishes what has come.

    Triton (24.10) keeps one counter for all users of the same name and labels, but counts its
    users within each family object, of which every stub has its own. If series were shared, the
    first stub to release one would free it under the others, whose next increment would write to
    freed memory of the server. So each series carries its stub's process number. A series lives as
    long as its family's object.
    """

    def __init__(
        self, statistics: Statistics, log: Callable[[str, str], None], interval_s: float
    ) -> None:
        self._statistics = statistics
        self._log = log
        self._interval_s = interval_s
        self._told: deque[StatisticsTold] = deque()
        self._due: deque[PublishedSeries] = deque()
        """The series to publish; only the thread uses it."""
        self._own_label = ("stub", str(os.getpid()))
        self._families: dict[tuple[str, str], tuple[Any, dict[_Labels, Any]]] = {}
        """Triton's metric families and their metrics by labels; the key is the family's name and,
        for a gauge, the worker that it describes, else empty."""
        self._lock = threading.Lock()  # of the families, and of the decision to publish no more
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, ask: Callable[[], None]) -> None:
        """Start the thread, unless the interval is 0. ``ask`` makes the workers send their news,
        sooner or later, for ``take``."""
        if self._interval_s:
            self._thread = threading.Thread(
                target=self._run, args=(ask,), name="brisk-metrics", daemon=True
            )
            self._thread.start()

    def take(self, told: StatisticsTold) -> None:
        """Queue a worker's report for the thread to publish; any thread may call."""
        self._told.append(told)

    def close(self) -> None:
        """Stop publishing and release the series, even while a worker does not read."""
        self._closing.set()
        with self._lock:
            self._families.clear()
        if self._thread is not None:
            self._thread.join(timeout=CLOSE_TIMEOUT_S)

    def _run(self, ask: Callable[[], None]) -> None:
        pause_s = self._interval_s
        while not self._closing.wait(pause_s):
            try:
                self._publish()  # what Triton did not take the last time
                ask()
                self._publish(self._statistics.take_news(OWN_NEWS))
                while self._told and not self._closing.is_set():
                    report = self._told.popleft()
                    if not report.is_chosen:
                        self._withdraw_gauges(report.worker)
                    self._publish(report.samples)
                pause_s = self._interval_s
            except Exception as error:  # noqa: BLE001  # Triton's own, of no common class
                if pause_s == self._interval_s:  # said once, also of a server without metrics
                    text = f"no metrics until this is over: {type(error).__name__}: {error}"
                    self._log("warning", text)
                pause_s = min(2 * pause_s, max(LONGEST_PAUSE_S, self._interval_s))

    def _publish(self, samples: Iterable[Sample] = ()) -> None:
        """Publish what is due and samples, with a pause before each series; stop when the stub is
        closing, since all series are withdrawn then. What Triton does not take stays due."""
        for sample in samples:
            self._due.extend(published(sample))
        while self._due:
            self._closing.wait(PAUSE_S)
            with self._lock:
                if self._closing.is_set():
                    return
                self._add(self._due[0])
            self._due.popleft()

    def _add(self, series: PublishedSeries) -> None:
        """Add to a counter, or set a gauge. Precondition: the caller holds the lock."""
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
        """Remove the gauges of ``worker``, which another stub publishes now."""
        with self._lock:
            for key in list(self._families):
                if key[1] == worker:
                    del self._families[key]
