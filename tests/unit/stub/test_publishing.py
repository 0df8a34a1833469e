"""What a stub shows on Triton's endpoint, and takes back, with a Triton that only notes it."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from brisk.protocol.records import Sample, StatisticsTold
from brisk.telemetry import metrics
from brisk.telemetry.statistics import Statistics
from support.waiting import PATIENCE_S, wait_until

LABELS = ("net", "1", "normal")


class Endpoint:
    """Values by name and labels; a series is there as long as its family is, as in Triton."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self.is_full = False
        """Whether no value is taken, as where shared memory is full."""

    def module(self) -> ModuleType:
        endpoint = self

        class Metric:
            def __init__(self, name: str, labels: dict[str, str]) -> None:
                self.key = (name, tuple(sorted(labels.items())))
                assert self.key not in endpoint.values, "shared with another family"
                endpoint.values[self.key] = 0.0

            def increment(self, value: float) -> None:
                if endpoint.is_full:
                    raise RuntimeError("Failed to increase the shared memory pool size")
                endpoint.values[self.key] += value

            def set(self, value: float) -> None:
                endpoint.values[self.key] = value

        class MetricFamily:
            COUNTER, GAUGE = "counter", "gauge"

            def __init__(self, name: str, description: str, kind: str) -> None:
                self.name = name
                self.made: list[tuple[str, Any]] = []

            def Metric(self, labels: dict[str, str]) -> Metric:  # Triton's name
                metric = Metric(self.name, labels)
                self.made.append(metric.key)
                return metric

            def __del__(self) -> None:
                for key in self.made:
                    del endpoint.values[key]

        module = ModuleType("triton_python_backend_utils")
        module.MetricFamily = MetricFamily  # type: ignore[attr-defined]
        return module

    def value(self, name: str) -> float | None:
        found = [value for (each, _), value in self.values.items() if each == name]
        return sum(found) if found else None


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    made = Endpoint()
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", made.module())
    monkeypatch.delitem(sys.modules, "brisk.stub.metrics", raising=False)
    yield made
    sys.modules.pop("brisk.stub.metrics", None)


def publisher(statistics: Statistics, logged: list[str] | None = None) -> Any:
    module = importlib.import_module("brisk.stub.metrics")
    lines = [] if logged is None else logged
    return module.Publisher(statistics, lambda level, text: lines.append(text), 0.01)


def told(is_chosen: bool, *samples: Sample) -> StatisticsTold:
    return StatisticsTold("foreground", is_chosen, samples, True)


HELD = Sample("brisk_loaded_models", ("foreground",), (3,))
LOADS = Sample("brisk_loads_total", ("net", "1", "entry", "loaded"), (2,))


def test_every_series_carries_the_stubs_number_and_counts_up(endpoint: Endpoint) -> None:
    statistics = Statistics()
    statistics.count(metrics.REQUESTS, LABELS, 5)
    published = publisher(statistics)
    published.start(lambda: None)
    wait_until(lambda: endpoint.value("brisk_requests_total") == 5, "brisk_requests_total")
    statistics.count(metrics.REQUESTS, LABELS)
    wait_until(lambda: endpoint.value("brisk_requests_total") == 6, "brisk_requests_total")
    assert all(("stub", str(os.getpid())) in labels for _, labels in endpoint.values)
    published.close()
    assert endpoint.values == {}


def test_what_triton_does_not_take_for_a_while_is_published_afterwards(endpoint: Endpoint) -> None:
    """Else nobody would publish a worker's counts any more, whose one publisher it is."""
    statistics, logged = Statistics(), list[str]()
    statistics.count(metrics.REQUESTS, LABELS, 5)
    endpoint.is_full = True
    asked: list[float] = []
    published = publisher(statistics, logged)
    published.take(told(True, LOADS))
    published.start(lambda: asked.append(1))
    wait_until(lambda: bool(logged), "the reason")
    statistics.count(metrics.REQUESTS, LABELS)
    endpoint.is_full = False
    wait_until(lambda: endpoint.value("brisk_requests_total") == 6, "brisk_requests_total")
    wait_until(lambda: endpoint.value("brisk_loads_total") == 2, "brisk_loads_total")
    published.close()
    assert len(logged) == 1
    assert "no metrics until this is over: RuntimeError: Failed to increase" in logged[0]
    assert asked


def test_who_is_not_chosen_any_more_withdraws_gauges_and_keeps_counters(
    endpoint: Endpoint,
) -> None:
    published = publisher(Statistics())
    published.start(lambda: None)
    published.take(told(True, HELD, LOADS))
    wait_until(lambda: endpoint.value("brisk_loads_total") == 2, "brisk_loads_total")
    assert endpoint.value("brisk_loaded_models") == 3
    published.take(told(False))
    wait_until(lambda: endpoint.value("brisk_loaded_models") is None, "brisk_loaded_models")
    assert endpoint.value("brisk_loads_total") == 2
    published.close()


def test_a_stub_ends_while_its_worker_does_not_read(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking hangs; the series go all the same, and nothing is published afterwards."""
    statistics = Statistics()
    statistics.count(metrics.REQUESTS, LABELS)
    published = publisher(statistics)
    monkeypatch.setattr(sys.modules["brisk.stub.metrics"], "CLOSE_TIMEOUT_S", 0.05)
    asked, reads = threading.Event(), threading.Event()
    first = threading.Event()

    def ask() -> None:
        if not first.is_set():
            first.set()
            return
        asked.set()
        reads.wait(PATIENCE_S)

    published.start(ask)
    assert asked.wait(PATIENCE_S)
    wait_until(lambda: endpoint.value("brisk_requests_total") == 1, "brisk_requests_total")
    statistics.count(metrics.REQUESTS, LABELS)
    published.close()
    assert endpoint.values == {}
    reads.set()
    for thread in threading.enumerate():
        if thread.name == "brisk-metrics":
            thread.join(PATIENCE_S)
    assert endpoint.values == {}


def test_a_metric_that_this_version_does_not_know_is_left_out(endpoint: Endpoint) -> None:
    published = publisher(Statistics())
    published.start(lambda: None)
    published.take(told(True, Sample("brisk_of_the_future", (), (1,)), LOADS))
    wait_until(lambda: endpoint.value("brisk_loads_total") == 2, "brisk_loads_total")
    assert endpoint.value("brisk_of_the_future") is None
    published.close()
