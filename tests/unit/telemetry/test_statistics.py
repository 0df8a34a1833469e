"""Counting, and telling each reader what it has not been told."""

from __future__ import annotations

import threading

import pytest

from brisk.errors import InternalError
from brisk.protocol.records import Sample
from brisk.telemetry import metrics
from brisk.telemetry.events import KEPT, MAX_CHARACTERS, Incidents
from brisk.telemetry.metrics import BOUNDS_NS, METRICS, Kind
from brisk.telemetry.statistics import (
    RequestAccount,
    Statistics,
    published,
    published_names,
)

LABELS = ("resnet", "1", "normal")


def values(samples: list[Sample]) -> dict[str, tuple[int, ...]]:
    return {sample.metric: sample.values for sample in samples}


def test_readers_are_told_everything_once() -> None:
    statistics = Statistics()
    statistics.count(metrics.REQUESTS, LABELS)
    statistics.count(metrics.REQUESTS, LABELS, 2)
    assert values(statistics.take_news(7)) == {"brisk_requests_total": (3,)}
    assert statistics.take_news(7) == []
    statistics.count(metrics.REQUESTS, LABELS)
    assert values(statistics.take_news(7)) == {"brisk_requests_total": (1,)}
    assert values(statistics.take_news(8)) == {"brisk_requests_total": (4,)}
    assert values(statistics.samples()) == {"brisk_requests_total": (4,)}


def test_a_reader_that_was_forgotten_is_told_everything_again() -> None:
    statistics = Statistics()
    statistics.count(metrics.WORKER_RESTARTS, ("foreground",))
    statistics.take_news(7)
    statistics.forget_reader(7)
    assert values(statistics.take_news(7)) == {"brisk_worker_restarts_total": (1,)}


def test_a_gauge_is_told_as_it_is_and_only_when_it_changed() -> None:
    statistics = Statistics()
    for held, samples in ((5, [(5,)]), (9, [(9,)]), (9, []), (2, [(2,)])):
        statistics.hold(metrics.LOADED_MODELS, ("foreground",), held)
        assert [sample.values for sample in statistics.take_news(0)] == samples


def test_a_duration_on_a_bound_belongs_to_the_class_below() -> None:
    statistics = Statistics()
    for duration_ns in (0, BOUNDS_NS[0], BOUNDS_NS[0] + 1, BOUNDS_NS[-1], BOUNDS_NS[-1] + 1):
        statistics.observe(metrics.REQUEST_SECONDS, LABELS, duration_ns)
    ((*classes, total_ns),) = values(statistics.samples()).values()
    assert classes == [2, 1, *[0] * (len(BOUNDS_NS) - 3), 1, 1]
    assert total_ns == 2 * BOUNDS_NS[0] + 1 + 2 * BOUNDS_NS[-1] + 1


def test_what_waits_to_be_counted_is_counted_before_somebody_reads() -> None:
    statistics = Statistics()
    account = RequestAccount(statistics, "resnet", 1)
    account.succeeded("normal", 5, 1, 2)
    account.uncounted.extend([("normal", 7, 1)] * 3)
    account.uncounted.append(("normal", 7, 4))
    samples = values(statistics.samples())
    assert samples["brisk_requests_total"] == (8,)
    assert samples["brisk_computed_in_stub_total"] == (7,)
    assert samples["brisk_request_seconds"][-1] == 5 + 4 * 7 + 3 * 7
    assert samples["brisk_run_requests"] == (3, 0, 1, *[0] * 6, 7)
    account.uncounted.append(("normal", 7, 1))
    assert values(statistics.take_news(3))["brisk_requests_total"] == (9,)
    assert statistics.take_news(3) == []
    account.uncounted.append(("normal", 7, 1))
    account.count()
    assert statistics.cells(metrics.REQUESTS, LABELS) == [10]
    assert not account.uncounted


def test_two_threads_lose_no_count() -> None:
    statistics = Statistics()

    def work() -> None:
        for _ in range(20_000):
            statistics.count(metrics.WORKER_RESTARTS, ("foreground",))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert values(statistics.samples()) == {"brisk_worker_restarts_total": (80_000,)}


def test_labels_are_one_value_for_each_name() -> None:
    with pytest.raises(InternalError, match=r"brisk_requests_total has labels .*'class'"):
        Statistics().count(metrics.REQUESTS, ("resnet", "1"))


def test_a_histogram_is_published_as_cumulative_counters() -> None:
    statistics = Statistics()
    for duration_ns in (300_000, 300_000, 3_000_000, 60_000_000_000):
        statistics.observe(metrics.LOAD_SECONDS, ("resnet", "1"), duration_ns)
    (sample,) = statistics.samples()
    series = list(published(sample))
    bounds = {dict(each.labels).get("le"): each.value for each in series if "bucket" in each.name}
    assert bounds["0.0005"] == bounds["0.002"] == 2
    assert bounds["0.005"] == bounds["10"] == 3
    assert bounds["+Inf"] == 4
    assert "0.0002" not in bounds
    rest = {each.name: each.value for each in series if "bucket" not in each.name}
    assert rest == {"brisk_load_seconds_sum": 60.0036, "brisk_load_seconds_count": 4}


def test_a_histogram_of_requests_is_published_as_it_is() -> None:
    statistics = Statistics()
    for requests in (1, 3, 4, 500):
        statistics.observe(metrics.RUN_REQUESTS, ("resnet", "1"), requests)
    (sample,) = statistics.samples()
    series = list(published(sample))
    bounds = {dict(each.labels).get("le"): each.value for each in series if "bucket" in each.name}
    assert [bounds[bound] for bound in ("1", "2", "4", "128", "+Inf")] == [1, 1, 3, 3, 4]
    rest = {each.name: each.value for each in series if "bucket" not in each.name}
    assert rest == {"brisk_run_requests_sum": 508, "brisk_run_requests_count": 4}


def test_a_counter_of_nanoseconds_is_published_in_seconds() -> None:
    name = metrics.HELD_SECONDS.name
    (series,) = published(Sample(name, (), (2_500_000_000,)))
    assert series.value == 2.5
    assert not series.is_gauge


def test_names_follow_prometheus_rules_and_are_published_by_one_metric_only() -> None:
    published_by = [name for metric in METRICS.values() for name in published_names(metric)]
    assert len(published_by) == len(set(published_by))
    for metric in METRICS.values():
        assert metric.name.startswith("brisk_")
        assert metric.name.endswith("_total") == (metric.kind in (Kind.COUNTER, Kind.SECONDS))
        is_histogram = metric.name.endswith(("_seconds", "_run_requests"))
        assert is_histogram == (metric.kind is Kind.HISTOGRAM)
        assert metric.help


def test_the_newest_incidents_are_kept_and_cut() -> None:
    incidents = Incidents()
    for number in range(KEPT + 5):
        incidents.note(f"{number} " + "x" * 1000)
    newest = incidents.newest(3)
    assert [text.split()[0] for _, text in newest] == [str(KEPT + 4 - back) for back in range(3)]
    assert all(len(text) == MAX_CHARACTERS for _, text in newest)
    assert len(incidents.newest(1000)) == KEPT
    assert incidents.newest(0) == incidents.newest(-1) == []


def test_incidents_that_differ_in_values_alone_are_told_once_with_their_number() -> None:
    incidents = Incidents()
    of_shape = "request of model 'net{}': dimensions of input: x index: 1 Got: {} Expected: 4"
    incidents.note(of_shape.format(1, 3))
    incidents.note("worker 12 has died")
    incidents.note(of_shape.format(1, 5))
    incidents.note(of_shape.format(2, 5))
    incidents.note("worker 13 has died")
    told = [text for _, text in incidents.newest(10)]
    assert told == [
        "worker 13 has died",
        of_shape.format(2, 5),
        f"2 times, the last: {of_shape.format(1, 5)}",
        "worker 12 has died",
    ]
    times_ns = [at_ns for at_ns, _ in incidents.newest(10)]
    assert times_ns == sorted(times_ns, reverse=True)


def test_gauges_are_told_again_to_a_reader_that_has_lost_them() -> None:
    statistics = Statistics()
    statistics.count(metrics.WORKER_RESTARTS, ("foreground",))
    statistics.hold(metrics.LOADED_MODELS, ("foreground",), 3)
    statistics.forget_gauges(7)
    assert len(statistics.take_news(7)) == 2
    statistics.forget_gauges(7)
    assert values(statistics.take_news(7)) == {"brisk_loaded_models": (3,)}
