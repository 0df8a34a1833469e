"""Runs that take longer than anybody waits: they end, and others go on beside them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from brisk.errors import CancelledError, InvalidRequestError, UnavailableError
from brisk.os_priority import LOADING, STALLED
from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.stub.runtime_client.client import RuntimeClient
from brisk.telemetry.observer import Observer
from support.runtime.runtime_process import (
    SLOW_INPUT,
    Answer,
    describe,
    endless_model,
    infer,
    opened,
    processes_of,
    slow_model,
    submit,
    worker_of,
)
from support.runtime.runtime_processes import processor_s
from support.waiting import TIMED, wait_until

pytestmark = pytest.mark.timing

FOR_EVER = np.array([2.0**62], np.float32)
ROWS = np.ones((3, 4), np.float32)


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    return endless_model(tmp_path / "endless.onnx")


def is_quiet(process: int) -> bool:
    before_s = processor_s(process)
    time.sleep(0.2)
    return processor_s(process) - before_s < 0.1


def begin(connection: RuntimeClient, job_class: str = "normal") -> tuple[int, Answer]:
    """A request that never ends, which is computed when this returns."""
    number, answer = submit(connection, FOR_EVER, job_class)
    time.sleep(0.1)
    assert not answer.has_come
    return number, answer


def test_a_run_ends_at_its_deadline(shared_place: RuntimePaths, endless: Path) -> None:
    with opened(shared_place, describe(endless)) as connection:
        late_ns = time.monotonic_ns() + 300_000_000
        _, answer = submit(connection, FOR_EVER, deadline_ns=late_ns)
        assert isinstance(answer.wait().error, UnavailableError)
        assert "time-out ran out" in str(answer.error)
        with TIMED:
            wait_until(lambda: is_quiet(worker_of(shared_place)), "the end of its computing")


def test_a_run_ends_when_its_client_cancels_it(shared_place: RuntimePaths, endless: Path) -> None:
    with opened(shared_place, describe(endless)) as connection:
        number, answer = begin(connection)
        connection.cancel(number)
        assert isinstance(answer.wait().error, CancelledError)
        with TIMED:
            wait_until(lambda: is_quiet(worker_of(shared_place)), "the end of its computing")


def test_a_run_ends_with_its_connection(
    shared_place: RuntimePaths, endless: Path, quick: Path
) -> None:
    with opened(shared_place, describe(quick)) as innocent:
        worker = worker_of(shared_place)
        with opened(shared_place, describe(endless)) as connection:
            begin(connection)
        with TIMED:
            wait_until(lambda: is_quiet(worker), "the end of its computing")
        np.testing.assert_array_equal(infer(innocent, ROWS), -ROWS)
        assert worker_of(shared_place) == worker


def test_a_run_ends_when_it_takes_longer_than_its_entry_allows(
    shared_place: RuntimePaths, endless: Path
) -> None:
    with opened(shared_place, describe(endless, max_run_ns=400_000_000)) as connection:
        _, answer = submit(connection, FOR_EVER)
        assert isinstance(answer.wait().error, InvalidRequestError)
        assert "after 0.4 s, which is the entry's brisk_max_run" in str(answer.error)
        (value,) = infer(connection, np.array([1.0], np.float32))
        assert value == pytest.approx(np.sin(1.0), rel=1e-5)


@pytest.mark.parametrize("job_class", ["normal", "realtime"])
def test_others_are_answered_beside_a_run_that_does_not_end(
    shared_place: RuntimePaths, endless: Path, quick: Path, job_class: str
) -> None:
    with opened(shared_place, describe(endless)) as connection:
        _, answer = begin(connection)
        with opened(shared_place, describe(quick)) as innocent:  # a load goes on, too
            waits_s = []
            for _ in range(100):
                started_s = time.monotonic()
                value = submit(innocent, ROWS, job_class)[1].output()
                waits_s.append(time.monotonic() - started_s)
                np.testing.assert_array_equal(value, -ROWS)
            assert not answer.has_come
            with TIMED:
                assert max(waits_s) < (0.3 if job_class == "realtime" else 2.0)
                assert float(np.median(waits_s)) < 0.05


def busiest_thread(process: int) -> int:
    """That has computed most in the last moment."""

    def ticks() -> dict[int, int]:
        found = {}
        for entry in Path(f"/proc/{process}/task").iterdir():
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            found[int(entry.name)] = int(fields[11])
        return found

    before = ticks()
    time.sleep(0.3)
    after = ticks()
    return max(before, key=lambda thread: after.get(thread, 0) - before[thread])


def test_a_run_that_does_not_end_leaves_the_processors_to_others(
    shared_place: RuntimePaths, endless: Path, quick: Path
) -> None:
    with (
        opened(shared_place, describe(quick)) as innocent,
        opened(shared_place, describe(endless)) as connection,
    ):
        usual = os.getpriority(os.PRIO_PROCESS, 0)
        number, _ = begin(connection)
        np.testing.assert_array_equal(infer(innocent, ROWS), -ROWS)
        aside = busiest_thread(worker_of(shared_place))
        assert os.getpriority(os.PRIO_PROCESS, aside) == max(LOADING, usual)

        time.sleep(1.2)
        np.testing.assert_array_equal(infer(innocent, ROWS), -ROWS)
        assert os.getpriority(os.PRIO_PROCESS, aside) == max(LOADING, usual)

        stand_further_back(innocent, aside)
        assert os.getpriority(os.PRIO_PROCESS, aside) == max(STALLED, usual)
        connection.cancel(number)
        with TIMED:
            wait_until(lambda: is_quiet(worker_of(shared_place)), "the end of its computing")
        number, _ = begin(connection)  # whoever computes now is none of them
        leader = busiest_thread(worker_of(shared_place))
        assert leader != aside
        assert os.getpriority(os.PRIO_PROCESS, leader) == usual
        connection.cancel(number)


def stand_further_back(urgent: RuntimeClient, aside: int) -> None:
    """By real-time requests beside it, until the thread gets idle processors only."""

    def does() -> bool:
        submit(urgent, ROWS, "realtime")[1].output()
        return os.sched_getscheduler(aside) == os.SCHED_IDLE

    with TIMED:
        wait_until(does, "that it stands further back, beside urgent work")


def test_a_run_that_gets_idle_processors_only_ends_without_its_worker(
    shared_place: RuntimePaths, endless: Path, quick: Path
) -> None:
    """It needs a processor to find out that it is to end, and there is none for some seconds."""
    with (
        opened(shared_place, describe(quick)) as innocent,
        opened(shared_place, describe(endless)) as connection,
    ):
        worker = worker_of(shared_place)
        number, _ = begin(connection)
        np.testing.assert_array_equal(infer(innocent, ROWS), -ROWS)
        stand_further_back(innocent, busiest_thread(worker))
        busy = [
            subprocess.Popen([sys.executable, "-c", "while True: pass"])
            for _ in range(12 * len(os.sched_getaffinity(0)))
        ]
        try:
            connection.cancel(number)
            time.sleep(3.0)
        finally:
            for process in busy:
                process.kill()
                process.wait()
        with TIMED:
            wait_until(lambda: is_quiet(worker), "the end of its computing")
        assert worker_of(shared_place) == worker
        np.testing.assert_array_equal(infer(innocent, ROWS), -ROWS)


def test_runs_that_do_not_end_make_room_for_each_other(
    shared_place: RuntimePaths, endless: Path, quick: Path
) -> None:
    with (
        opened(shared_place, describe(endless)) as connection,
        opened(shared_place, describe(quick)) as innocent,
    ):
        worker = worker_of(shared_place)
        answers = [submit(connection, FOR_EVER)[1] for _ in range(7)]
        np.testing.assert_array_equal(infer(innocent, ROWS), -ROWS)
        with TIMED:
            wait_until(lambda: sum(answer.has_come for answer in answers) == 2, "room for all")
        for answer in answers[:2]:
            assert "ended for others" in str(answer.wait().error)
        np.testing.assert_array_equal(infer(innocent, ROWS), -ROWS)
        assert worker_of(shared_place) == worker


def test_a_stopped_worker_is_replaced_and_its_requests_are_answered(
    place: RuntimePaths, quick: Path
) -> None:
    with opened(place, describe(quick)) as connection:
        np.testing.assert_array_equal(infer(connection, ROWS), -ROWS)
        worker = worker_of(place)
        os.kill(worker, signal.SIGSTOP)
        np.testing.assert_array_equal(infer(connection, ROWS), -ROWS)
        assert worker not in processes_of(place)


def test_a_parked_run_ends_at_its_deadline(
    shared_place: RuntimePaths, slow: Path, tmp_path: Path
) -> None:
    longer = slow_model(tmp_path / "longer.onnx", steps=1200)
    with (
        opened(shared_place, describe(slow)) as connection,
        opened(shared_place, describe(longer)) as urgent,
        Observer(shared_place, Role.FOREGROUND) as observer,
    ):

        def is_parked() -> bool:
            return any(run.is_parked for run in observer.status().runs)

        late_ns = time.monotonic_ns() + 800_000_000
        _, answer = submit(connection, SLOW_INPUT, deadline_ns=late_ns)
        time.sleep(0.1)
        number, first = submit(urgent, SLOW_INPUT, "realtime")
        wait_until(lambda: is_parked() or answer.has_come, "its place behind the other one")
        assert isinstance(answer.wait().error, UnavailableError)
        assert "time-out ran out" in str(answer.error)
        assert not first.has_come
        urgent.cancel(number)
