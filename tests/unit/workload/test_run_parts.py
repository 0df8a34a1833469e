"""Statistics, phases, processes and rows of a run."""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

from brisk_bench.workload_report import plot_run, summarise_run
from brisk_client.workload.description import Continuous, Dependent, Periodic, Task, Workload
from brisk_client.workload.generator import Generator
from brisk_client.workload.requests import coordinate, input_shape, needs_coordination
from brisk_client.workload.results import (
    MISSED_NS,
    GeneratorOutcome,
    Row,
    RowWriter,
    RunOutcome,
    TaskOutcome,
    begin_rows,
)
from brisk_client.workload.runner import groups


def _outcome(requests: int, lag_ns: int, greatest_lag_ns: int) -> RunOutcome:
    task = TaskOutcome("camera", "realtime")
    for number in range(requests):
        sent_ns = 1000 + (lag_ns if number else greatest_lag_ns)
        row = Row("camera", "realtime", "m", number, 1000, 0, sent_ns, 9000, "ok")
        task.add(row)
    return RunOutcome(1.0, [GeneratorOutcome([task], 0.1)])


def test_a_run_of_few_requests_has_no_p99_and_its_lag_is_judged_by_the_greatest() -> None:
    report = summarise_run("short", _outcome(20, 1000, 900_000))
    assert report.rows[0]["p99_ms"] == "too few answers (20 of 1,000)"
    assert report.rows[0]["p50_ms"] == pytest.approx(0.008)
    lag = report.checks[-1]
    assert (lag.ok, lag.value) == (True, pytest.approx(0.9))
    assert "greatest lag ms, too few answers (20 of 1,000) for a p99" in lag.name
    late = summarise_run("late", _outcome(20, 1000, 1_100_000))
    assert not late.ok
    assert any("it sent late itself" in note for note in late.notes)
    assert not any("it sent late itself" in note for note in report.notes)


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
    }
    return Row(**{**values, **changes})  # type: ignore[arg-type]


def test_rows_of_several_processes_stand_in_one_file(tmp_path: Path) -> None:
    rows = [_row(1), _row(2, status="UNAVAILABLE", dropped_ns=(700, 800, 900))]
    file = tmp_path / "new" / "rows.csv"
    begin_rows(file)
    writers = [RowWriter(file), RowWriter(file)]
    for writer, row in zip(writers, rows, strict=True):
        writer.write(row)
    for writer in writers:
        writer.close()
    with file.open(newline="") as lines:
        found = list(csv.DictReader(lines))
    assert [(row["serial"], row["status"]) for row in found] == [("1", "ok"), ("2", "UNAVAILABLE")]
    assert [row["dropped"] for row in found] == ["0", "3"]
    assert found[1]["done_ns"] == "2400"


def test_rows_that_a_full_disk_does_not_take_are_counted_and_keep_no_request_back(
    tmp_path: Path,
) -> None:
    file = tmp_path / "rows.jsonl"
    file.symlink_to("/dev/full")
    begin_rows(file)
    generator = Generator.__new__(Generator)  # without its server
    generator.outcomes = {"t": TaskOutcome("t", "realtime")}
    generator.errors = Counter()
    generator._writer = RowWriter(file)
    for number in range(3):
        generator._take(_row(number))
    assert generator.outcomes["t"].answered == 3
    ((text, count),) = generator.errors.items()
    assert re.search("a row is not written: .*No space left on device", text)
    assert count == 3
    with pytest.raises(OSError, match="No space"):
        generator._writer.close()


def test_a_run_is_drawn(tmp_path: Path) -> None:
    (file,) = plot_run("short", _outcome(20, 1000, 900_000), tmp_path)
    assert file.name == "short-latency.png"
    assert file.stat().st_size > 10_000


def test_an_outcome_counts_errors_apart_from_latencies() -> None:
    outcome = TaskOutcome("t", "realtime")
    outcome.add(_row(1))
    outcome.add(_row(2, status="UNAVAILABLE", dropped_ns=(700, 800, 900), done_ns=10**9))
    assert (outcome.answered, outcome.failed, outcome.dropped) == (1, 1, 3)
    assert list(outcome.latency_ns) == [400]
    assert list(outcome.lag_ns) == [10, 10]


def test_a_dropped_request_has_waited_until_the_one_that_took_its_place_was_answered() -> None:
    outcome = TaskOutcome("t", "realtime")
    outcome.add(_row(5, dropped_ns=(3000, 4000)))
    assert list(outcome.latency_ns) == [400]
    assert list(outcome.missed_ns) == [2400, 1400], "each has waited longer than what was sent"


def test_a_request_that_failed_has_waited_as_long_as_a_client_waits() -> None:
    outcome = TaskOutcome("t", "realtime")
    outcome.add(_row(5, status="UNAVAILABLE", dropped_ns=(3000,)))
    assert list(outcome.missed_ns) == [MISSED_NS] * 2, "a refusal at once is no quick answer"
    merged = RunOutcome(1.0, [GeneratorOutcome([outcome, outcome], 0.1)]).of_class("realtime")
    assert list(merged.missed_ns) == [MISSED_NS] * 4


def test_answers_a_second_are_told_by_class() -> None:
    tasks = [TaskOutcome("rt", "realtime"), TaskOutcome("be", "besteffort")]
    for task, count in zip(tasks, (4, 6), strict=True):
        for number in range(count):
            task.add(_row(number))
    outcome = RunOutcome(2.0, [GeneratorOutcome(tasks, 0.1)])
    assert (outcome.per_s(), outcome.per_s("besteffort")) == (5.0, 3.0)


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
