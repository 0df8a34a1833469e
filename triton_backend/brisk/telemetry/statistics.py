"""The values of metrics, their changes for each reader, and their publication."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import NamedTuple

from brisk.errors import BriskError, InternalError
from brisk.protocol.records import Sample
from brisk.telemetry import metrics
from brisk.telemetry.metrics import BOUNDS_NS, METRICS, Kind, Metric

Series = tuple[Metric, tuple[str, ...]]


class Statistics:
    """All series of a process; any thread may use it.

    One lock guards all, so that no count is lost; taking it costs less than the addition (0.1 µs).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._series: dict[Series, list[int]] = {}
        self._reported: dict[int, dict[Series, tuple[int, ...]]] = {}
        self._behind: list[Callable[[], None]] = []

    def before_reading(self, settle: Callable[[], None]) -> None:
        """Register ``settle``, which is called before values are read, to count what is still
        uncounted."""
        self._behind.append(settle)

    def _settle(self) -> None:
        for settle in self._behind:
            settle()

    def count(self, metric: Metric, labels: tuple[str, ...] = (), amount: int = 1) -> None:
        """Add to a counter; ``amount`` in ns for a counter of seconds."""
        with self._lock:
            self._values(metric, labels)[0] += amount

    def hold(self, metric: Metric, labels: tuple[str, ...], value: int) -> None:
        """Set a gauge."""
        with self._lock:
            self._values(metric, labels)[0] = value

    def observe(self, metric: Metric, labels: tuple[str, ...], value: int) -> None:
        """Add to a histogram; a duration in ns."""
        position = bisect_left(metric.bounds, value)
        with self._lock:
            values = self._values(metric, labels)
            values[position] += 1
            values[-1] += value

    def cells(self, metric: Metric, labels: tuple[str, ...]) -> list[int]:
        """Return the list in which a series is counted, for ``add``; it is always the same
        object."""
        with self._lock:
            return self._values(metric, labels)

    def add(
        self,
        counter: list[int],
        amount: int,
        histograms: tuple[list[int], ...] = (),
        durations_ns: tuple[int, ...] = (),
    ) -> None:
        """Add ``amount`` to a counter, and each duration to its histogram ``amount`` times, under
        one lock.

        The lists are those that ``cells`` has returned.
        """
        with self._lock:
            counter[0] += amount
            for values, duration_ns in zip(histograms, durations_ns, strict=True):
                values[bisect_left(BOUNDS_NS, duration_ns)] += amount
                values[-1] += duration_ns * amount

    def samples(self) -> list[Sample]:
        """Return the values since the process began."""
        self._settle()
        with self._lock:
            return [
                Sample(metric.name, labels, tuple(values))
                for (metric, labels), values in self._series.items()
            ]

    def take_news(self, reader: int) -> list[Sample]:
        """Return what has been counted since the last call for ``reader``; gauges as they are, if
        changed."""
        news = []
        self._settle()
        with self._lock:
            reported = self._reported.setdefault(reader, {})
            for series, values in self._series.items():
                metric, labels = series
                now = added = tuple(values)
                before = reported.get(series)
                if now == before:
                    continue
                reported[series] = now
                if before is not None and metric.kind is not Kind.GAUGE:
                    added = tuple(new - old for new, old in zip(now, before, strict=True))
                news.append(Sample(metric.name, labels, added))
        return news

    def forget_reader(self, reader: int) -> None:
        """Forget a reader that has ended; if it returns, it gets everything."""
        with self._lock:
            self._reported.pop(reader, None)

    def forget_gauges(self, reader: int) -> None:
        """Let a reader get all gauges again, also those that have not changed."""
        with self._lock:
            reported = self._reported.get(reader, {})
            for series in [each for each in reported if each[0].kind is Kind.GAUGE]:
                del reported[series]

    def _values(self, metric: Metric, labels: tuple[str, ...]) -> list[int]:
        values = self._series.get((metric, labels))
        if values is None:
            if len(labels) != len(metric.labels):
                raise InternalError(
                    f"metric {metric.name} has labels {metric.labels}, got {labels!r:.80}"
                )
            # How many values are in each class, in order, then their sum.
            size = len(metric.bounds) + 2 if metric.kind is Kind.HISTOGRAM else 1
            values = self._series[metric, labels] = [0] * size
        return values


STATISTICS = Statistics()
"""The statistics of this process. A forked worker starts with what its supervisor counted:
nothing."""


_OF_AN_ANSWER = (
    metrics.REQUESTS,
    metrics.REQUEST_SECONDS,
    metrics.QUEUE_SECONDS,
    metrics.EXECUTION_SECONDS,
)


class RequestAccount:
    """The counts of the answers to one model version's requests. Any thread may use it."""

    def __init__(self, statistics: Statistics, model: str, version: int) -> None:
        self._statistics = statistics
        self._model = (model, str(version))
        self._cells: dict[str, tuple[list[int], ...]] = {}
        """The cells in which requests and their durations are counted, by class."""
        self.uncounted: deque[tuple[str, int, int]] = deque()
        """The requests that this process has computed itself, without a queue: class, duration in
        ns and number of requests. They are counted when statistics are read, and now and then by
        the thread that appends them: counting each at once costs more than all else that is done
        for it, apart from its run."""
        self._durations = [0] * (len(BOUNDS_NS) + 1)
        """The number of requests from ``uncounted`` in each class of durations, counted since the
        last ``take_durations``."""
        statistics.before_reading(self.count)

    def succeeded(
        self, job_class: str, took_ns: int, queue_ns: int, execution_ns: int, requests: int = 1
    ) -> None:
        """Count ``requests`` successful answers with equal times.

        ``took_ns``: from arrival in the stub to the answer; the other times are a Result's.
        """
        cells = self._cells.get(job_class)
        if cells is None:
            labels = (*self._model, job_class)
            cells = self._cells[job_class] = tuple(
                self._statistics.cells(metric, labels) for metric in _OF_AN_ANSWER
            )
        durations_ns = (took_ns, queue_ns, execution_ns)
        self._statistics.add(cells[0], requests, cells[1:], durations_ns)

    def count(self) -> None:
        """Count the requests in ``uncounted``."""
        waiting = self.uncounted
        while waiting:
            try:
                job_class, took_ns, requests = waiting.popleft()
            except IndexError:
                break  # another thread is counting them, too
            self.succeeded(job_class, took_ns, 0, took_ns, requests)
            self._durations[bisect_left(BOUNDS_NS, took_ns)] += requests
            self._statistics.count(metrics.COMPUTED_IN_STUB, self._model, requests)
            self._statistics.observe(metrics.RUN_REQUESTS, self._model, requests)

    def gave_way(self) -> None:
        """Count a run of this process that was ended for real-time work."""
        self._statistics.count(metrics.GIVEN_WAY, self._model)

    def take_durations(self) -> tuple[int, ...]:
        """Return the number of requests in each class of the histogram of durations, of those that
        this process has computed itself and counted since the last call."""
        durations, self._durations = self._durations, [0] * (len(BOUNDS_NS) + 1)
        return tuple(durations)

    def failed(self, job_class: str, error: Exception) -> None:
        kind = error.code if isinstance(error, BriskError) else InternalError.code
        labels = (*self._model, job_class)
        self._statistics.count(metrics.REQUESTS, labels)
        self._statistics.count(metrics.ERRORS, (*labels, kind))


# The publication on Triton's metrics endpoint.


class PublishedSeries(NamedTuple):
    """A series to publish on the endpoint. ``is_gauge``: ``value`` is the current one; else it is
    to be added."""

    name: str
    help: str
    labels: tuple[tuple[str, str], ...]
    is_gauge: bool
    value: float


def published_names(metric: Metric) -> tuple[str, ...]:
    """Return a metric's names on the endpoint: a histogram has three, like Prometheus' own.

    Triton's own histograms take one duration per call, which is a round trip. So a histogram's
    series are published as counters; ``histogram_quantile`` reads names and labels, not types.
    """
    if metric.kind is not Kind.HISTOGRAM:
        return (metric.name,)
    return tuple(f"{metric.name}_{part}" for part in ("bucket", "sum", "count"))


def published(sample: Sample) -> Iterator[PublishedSeries]:
    """Yield the series of a sample, without a histogram's classes that have nothing to add.

    A metric of another version of Brisk, which is not declared here, has no series.
    """
    metric = METRICS.get(sample.metric)
    if metric is None:
        return
    labels = tuple(zip(metric.labels, sample.labels, strict=True))
    if metric.kind is not Kind.HISTOGRAM:
        value = sample.values[0] / metric.per_unit
        yield PublishedSeries(metric.name, metric.help, labels, metric.kind is Kind.GAUGE, value)
        return
    bucket, total, count = published_names(metric)
    *classes, whole = sample.values
    bounds = [f"{bound / metric.per_unit:g}" for bound in metric.bounds] + ["+Inf"]
    for bound, value in zip(bounds, accumulate(classes), strict=True):
        if value:
            yield PublishedSeries(bucket, metric.help, (*labels, ("le", bound)), False, value)
    yield PublishedSeries(total, metric.help, labels, False, whole / metric.per_unit)
    yield PublishedSeries(count, metric.help, labels, False, sum(classes))
