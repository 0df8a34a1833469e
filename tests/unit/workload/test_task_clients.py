"""Clients of a workload in virtual time: when they send, what they forget, what they record."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from brisk_client.workload.description import (
    Continuous,
    Dependent,
    Load,
    Periodic,
    Poisson,
    Task,
    Trace,
    Workload,
)
from brisk_client.workload.results import OK, Row
from brisk_client.workload.task_client import Ask, TaskClient
from support.virtual_loop import run_virtually


def _server(durations_s: Sequence[float], status: str = OK) -> Ask:
    """Answers the n-th request after the n-th duration; the last one holds for the rest."""
    asked = 0

    async def ask() -> str:
        nonlocal asked
        duration_s = durations_s[min(asked, len(durations_s) - 1)]
        asked += 1
        await asyncio.sleep(duration_s)
        return status

    return ask


def _run(
    load: Load,
    durations_s: Sequence[float],
    time_s: float = 1.0,
    *,
    in_flight: int = 1,
    drops_stale: bool = True,
    status: str = OK,
    cancel_after_s: float | None = None,
) -> list[Row]:
    task = Task("t", "m", load, in_flight=in_flight, drops_stale=drops_stale)
    rows: list[Row] = []

    async def main() -> None:
        workload = Workload(time_s, (task,))
        client = TaskClient(workload, task, _server(durations_s, status), rows.append, 0.0)
        running = asyncio.create_task(client.run())
        await asyncio.wait([running], timeout=cancel_after_s)
        running.cancel()
        await asyncio.gather(running)

    run_virtually(main())
    return rows


def _milliseconds(rows: Sequence[Row], name: str) -> list[float]:
    return [round(getattr(row, name) / 1e6, 3) for row in rows]


def test_a_periodic_client_sends_on_time_and_ends_with_the_workload() -> None:
    rows = _run(Periodic(10.0, 0.05), [0.02])
    assert _milliseconds(rows, "scheduled_ns") == [50 + 100 * n for n in range(10)]
    assert _milliseconds(rows, "sent_ns") == _milliseconds(rows, "scheduled_ns")
    assert {row.status for row in rows} == {OK}
    assert all(row.lag_ns == 0 for row in rows)


def test_latency_counts_from_when_the_request_was_due() -> None:
    """The second one is due at 100 but its client is busy until 150: it is sent late."""
    rows = _run(Periodic(10.0, 0.0), [0.15, 0.02], 0.3)
    assert _milliseconds(rows, "scheduled_ns") == [0, 100, 200]
    assert _milliseconds(rows, "sent_ns") == [0, 150, 200]
    assert _milliseconds(rows, "latency_ns") == [150, 70, 20]
    assert [row.lag_ns for row in rows] == [0, 0, 0]


def test_frames_that_are_stale_when_the_client_is_free_are_dropped() -> None:
    """Busy until 450: of 100, 200, 300 and 400 only the newest is sent, and late."""
    rows = _run(Periodic(10.0, 0.0), [0.45, 0.02], 0.6)
    assert _milliseconds(rows, "scheduled_ns") == [0, 400, 500]
    assert [row.dropped_ns for row in rows] == [(), (100_000_000, 200_000_000, 300_000_000), ()]
    assert _milliseconds(rows, "latency_ns") == [450, 70, 20]


def test_a_client_that_keeps_stale_frames_sends_them_late_in_order() -> None:
    rows = _run(Periodic(10.0, 0.0), [0.25, 0.02], 0.4, drops_stale=False)
    assert _milliseconds(rows, "scheduled_ns") == [0, 100, 200, 300]
    assert _milliseconds(rows, "sent_ns") == [0, 250, 270, 300]
    assert sum(row.dropped for row in rows) == 0


def test_several_in_flight_overlap() -> None:
    rows = _run(Periodic(10.0, 0.0), [0.25], 0.4, in_flight=3)
    assert sorted(_milliseconds(rows, "sent_ns")) == [0, 100, 200, 300]
    assert sum(row.dropped for row in rows) == 0


def test_a_trace_is_followed_to_its_end() -> None:
    rows = _run(Trace((0.0, 0.2, 0.21, 0.9, 5.0)), [0.1])
    assert _milliseconds(rows, "scheduled_ns") == [0, 200, 210, 900]
    assert _milliseconds(rows, "sent_ns") == [0, 200, 300, 900]


def test_poisson_arrivals_have_the_rate_and_repeat_with_the_seed() -> None:
    rows = _run(Poisson(50.0), [0.0001], 40.0, in_flight=100)
    assert 1800 < len(rows) < 2200
    gaps = [b.sent_ns - a.sent_ns for a, b in itertools.pairwise(rows)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert 0.85 < deviation / mean < 1.15  # 1 for exponential gaps
    again = _run(Poisson(50.0), [0.0001], 40.0, in_flight=100)
    assert [row.scheduled_ns for row in again] == [row.scheduled_ns for row in rows]


def test_a_closed_loop_sends_as_soon_as_it_is_answered() -> None:
    rows = _run(Continuous(), [0.3])
    assert _milliseconds(rows, "sent_ns") == [0, 300, 600, 900]
    assert _milliseconds(rows, "latency_ns") == [300] * 4


def test_a_closed_loop_waits_longer_after_each_error() -> None:
    rows = _run(Continuous(), [0.0], 3.0, status="UNAVAILABLE")
    assert _milliseconds(rows, "sent_ns") == [0, 20, 60, 140, 300, 620, 1260, 2260]


def test_what_is_in_flight_when_the_run_is_cut_off_is_unfinished() -> None:
    rows = _run(Periodic(10.0, 0.0), [0.01, 1e6], 0.2, cancel_after_s=5.0)
    assert [row.status for row in rows] == [OK, "unfinished"]


def test_what_was_due_and_never_sent_when_the_run_is_cut_off_is_unfinished_too() -> None:
    """Arrivals at 0, 100 and 200 ms; the second is never answered, so that the third has to wait.

    What is not counted would make a server that hangs look quick.
    """
    rows = _run(Periodic(10.0, 0.0), [0.01, 1e6], 0.3, cancel_after_s=5.0)
    assert _milliseconds(rows, "scheduled_ns") == [0, 100, 200]
    assert [row.status for row in rows] == [OK, "unfinished", "unfinished"]
    assert _milliseconds(rows, "latency_ns") == [10, 4900, 4800]


def _run_dependent(
    first_s: Sequence[float], second_s: Sequence[float], third_s: Sequence[float]
) -> list[Row]:
    """Two periodic tasks, and one that follows both."""
    tasks = (
        Task("a", "m", Periodic(10.0, 0.0)),
        Task("b", "m", Periodic(10.0, 0.0)),
        Task("c", "m", Dependent(("a", "b"))),
    )
    rows: list[Row] = []

    async def main() -> None:
        workload = Workload(0.4, tasks)
        asks = [_server(each) for each in (first_s, second_s, third_s)]
        clients = [
            TaskClient(workload, task, ask, rows.append, 0.0)
            for task, ask in zip(tasks, asks, strict=True)
        ]
        followed = clients[2].predecessors
        assert followed is not None
        for client in clients[:2]:
            client.followers.append(followed)
        await asyncio.gather(*(client.run() for client in clients))

    run_virtually(main())
    return [row for row in rows if row.task == "c"]


def test_a_dependent_client_sends_when_all_it_follows_are_answered() -> None:
    rows = _run_dependent([0.02], [0.05], [0.01])
    assert _milliseconds(rows, "scheduled_ns") == [50, 150, 250, 350]
    assert _milliseconds(rows, "sent_ns") == [50, 150, 250, 350]


def test_a_dependent_client_that_is_behind_counts_its_latency_from_the_answers() -> None:
    rows = _run_dependent([0.02], [0.05], [0.18])
    assert _milliseconds(rows, "scheduled_ns")[:3] == [50, 150, 250]
    assert _milliseconds(rows, "sent_ns")[:3] == [50, 230, 410]
