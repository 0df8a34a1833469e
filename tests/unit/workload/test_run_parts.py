"""Statistics, phases, processes and rows of a run."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest

from brisk_client.workload.results.histogram import Histogram
from brisk_client.workload.results.outcome import GeneratorCost, RunOutcome, TaskOutcome
from brisk_client.workload.results.rows import Row, RowWriter, read_rows
from brisk_client.workload.results.summary import summarise_run
from brisk_client.workload.sending.coordination import coordinate, groups, needs_coordination
from brisk_client.workload.sending.requests import input_shape
from brisk_client.workload.spec.description import (
    Continuous,
    Dependent,
    Periodic,
    Task,
    Workload,
)


def test_a_histogram_agrees_with_the_sorted_times() -> None:
    source = random.Random(1)
    times_ns = [round(source.lognormvariate(16, 1)) for _ in range(20_000)]
    histogram = Histogram()
    for time_ns in times_ns:
        histogram.add(time_ns)
    ordered = sorted(times_ns)
    assert histogram.mean_ns() == pytest.approx(statistics.fmean(times_ns), rel=1e-12)
    for share, place in ((0.5, 9999), (0.99, 19_799), (0.999, 19_979), (1.0, 19_999)):
        assert histogram.quantile_ns(share) == pytest.approx(ordered[place], rel=0.0011)
    assert histogram.greatest_ns == ordered[-1]


def test_histograms_merged_are_as_one_and_survive_writing() -> None:
    whole, first, second = Histogram(), Histogram(), Histogram()
    for number in range(1, 2000):
        whole.add(number * 1000)
        (first if number % 3 else second).add(number * 1000)
    first.merge(Histogram.from_document(second.to_document()))
    first.merge(Histogram())
    assert first == whole


def test_an_empty_histogram_has_no_mean_and_no_quantile() -> None:
    assert Histogram().mean_ns() is None
    assert Histogram().quantile_ns(0.5) is None


def test_a_histogram_tells_no_tail_of_few_times() -> None:
    histogram = Histogram()
    for number in range(999):
        histogram.add(number)
    assert histogram.quantile_ns(0.99) is None
    assert histogram.quantile_ns(0.9) is not None
    histogram.add(1)
    assert histogram.quantile_ns(0.99) is not None
    assert histogram.quantile_ns(0.999) is None


def _outcome(requests: int, lag_ns: int, greatest_lag_ns: int) -> RunOutcome:
    task = TaskOutcome("camera", "realtime")
    for number in range(requests):
        sent_ns = 1000 + (lag_ns if number else greatest_lag_ns)
        row = Row("camera", "realtime", "m", number, 1000, 0, sent_ns, 9000, "ok", 0)
        task.add(row)
    return RunOutcome(1.0, [task], [GeneratorCost(("camera",), 0.1, task.lag)])


def test_a_run_of_few_requests_has_no_p99_and_its_lag_is_judged_by_the_greatest() -> None:
    report = summarise_run("short", _outcome(20, 1000, 900_000))
    assert report.rows[0]["p99_ms"] == "too few answers (20 of 1,000)"
    assert report.rows[0]["p50_ms"] == pytest.approx(0.008)
    lag = report.checks[-1]
    assert (lag.ok, lag.value) == (True, pytest.approx(0.9))
    assert "greatest lag ms, too few answers (20 of 1,000) for a p99" in lag.name
    assert not summarise_run("late", _outcome(20, 1000, 1_100_000)).ok


def test_a_run_of_enough_requests_has_a_p99_and_no_p999() -> None:
    report = summarise_run("long", _outcome(2000, 1000, 5_000_000))
    assert report.rows[0]["p99_ms"] == pytest.approx(0.008, rel=0.002)
    assert report.rows[0]["p999_ms"] == "too few answers (2,000 of 10,000)"
    assert report.ok, "one request of two thousand was late"


def test_periodic_tasks_of_one_frequency_follow_each_other() -> None:
    """DISB's coordinator: each starts when those before it would be done."""
    tasks = (
        Task("a", "m", Periodic(20.0)),
        Task("b", "m", Periodic(100.0)),
        Task("c", "m", Periodic(20.0)),
        Task("d", "m", Periodic(20.0, 0.003)),
        Task("e", "m", Periodic(20.0)),
        Task("f", "m", Continuous()),
    )
    workload = Workload(1.0, tasks)
    assert needs_coordination(workload) == {"a", "c", "e"}
    fixed = coordinate(workload, {"a": 0.010, "c": 0.004, "e": 0.001})
    loads = [task.load for task in fixed.tasks]
    phases = [load.phase_s for load in loads if isinstance(load, Periodic)]
    assert phases == [0.0, 0.0, 0.010, 0.003, 0.014]


def test_best_effort_tasks_have_a_process_of_their_own() -> None:
    tasks = (
        Task("rt", "m", Periodic(20.0), job_class="realtime"),
        Task("be", "m", Continuous(), job_class="besteffort"),
        Task("plain", "m", Continuous()),
    )
    assert groups(Workload(1.0, tasks)) == [(False, ["rt", "plain"]), (True, ["be"])]


def test_tasks_that_depend_on_each_other_share_a_process() -> None:
    tasks = (
        Task("rt", "m", Periodic(20.0), job_class="realtime"),
        Task("be", "m", Dependent(("rt",)), job_class="besteffort"),
        Task("other", "m", Continuous(), job_class="besteffort"),
    )
    assert groups(Workload(1.0, tasks)) == [(False, ["rt", "be"]), (True, ["other"])]


def _row(serial: int, **changes: object) -> Row:
    values = {
        "task": "t",
        "job_class": "realtime",
        "model": "m",
        "serial": serial,
        "scheduled_ns": serial * 1000,
        "free_ns": serial * 1000 - 500,
        "sent_ns": serial * 1000 + 10,
        "done_ns": serial * 1000 + 400,
        "status": "ok",
        "dropped": 0,
    }
    return Row(**{**values, **changes})  # type: ignore[arg-type]


def test_rows_come_back_from_their_file(tmp_path: Path) -> None:
    rows = [_row(1), _row(2, status="UNAVAILABLE", dropped=3)]
    writer = RowWriter(tmp_path / "rows.csv")
    for row in rows:
        writer.write(row)
    writer.close()
    assert list(read_rows(tmp_path / "rows.csv")) == rows


def test_an_outcome_counts_errors_apart_from_latencies() -> None:
    outcome = TaskOutcome("t", "realtime")
    outcome.add(_row(1))
    outcome.add(_row(2, status="UNAVAILABLE", dropped=3, done_ns=10**9))
    assert (outcome.answered, outcome.failed, outcome.dropped) == (1, 1, 3)
    assert outcome.latency.greatest_ns == 400
    assert TaskOutcome.from_document(outcome.to_document()) == outcome


@pytest.mark.parametrize(
    ("declared", "changes", "expected"),
    [
        ([-1, 3, -1, -1], {}, [1, 3, 224, 224]),
        ([-1, 3, -1, -1], {"sizes": {"x": (3, 8, 8)}, "batch_size": 4}, [4, 3, 8, 8]),
        ([-1, -1], {}, [1, 128]),
        ([5], {}, [5]),
        ([3, -1], {"sizes": {"x": (3, 9)}}, [3, 9]),
    ],
)
def test_open_sizes_are_filled(
    declared: list[int], changes: dict[str, object], expected: list[int]
) -> None:
    task = Task("t", "m", Continuous(), **changes)  # type: ignore[arg-type]
    assert input_shape(task, "x", declared) == expected


@pytest.mark.parametrize(
    ("declared", "changes", "message"),
    [
        ([3, 8], {"batch_size": 4}, "has shape .3, 8., without a batch"),
        ([-1, 3, 8], {"sizes": {"x": (4, 8)}}, "sizes .4, 8. do not fit input 'x'"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    declared: list[int], changes: dict[str, object], message: str
) -> None:
    task = Task("t", "m", Continuous(), **changes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        input_shape(task, "x", declared)
