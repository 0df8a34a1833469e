"""What dies is replaced and its requests are answered; every process here is really killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from brisk.errors import InternalError, InvalidRequestError, UnavailableError
from brisk.protocol.records import TensorForm
from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.protocol.shared_memory import mark_is_set
from brisk.stub.runtime_client.client import RuntimeClient
from brisk.stub.runtime_client.runtime_process import start_if_absent
from brisk.stub.runtime_client.transport import DirectSender
from brisk.telemetry.observer import Observer
from support.runtime.runtime_process import (
    SLOW_INPUT,
    Answer,
    describe,
    infer,
    kill,
    opened,
    processes_of,
    submit,
    submit_marked,
    supervisor_of,
    worker_of,
)
from support.waiting import wait_until

ROWS = np.arange(40, dtype=np.float32).reshape(10, 4)


def sixteen(connection: RuntimeClient) -> list[tuple[np.ndarray, Answer]]:
    inputs = [ROWS + number for number in range(16)]
    return [(value, submit(connection, value)[1]) for value in inputs]


def assert_answered(sent: list[tuple[np.ndarray, Answer]]) -> None:
    for value, answer in sent:
        np.testing.assert_array_equal(answer.output(), -value)
        assert answer.times == 1


def test_requests_in_flight_survive_their_worker(
    shared_place: RuntimePaths, connection: RuntimeClient, slow: Path, logged: list[str]
) -> None:
    with opened(shared_place, describe(slow)) as busy:
        _, holding = submit(busy, SLOW_INPUT)
        worker, supervisor = worker_of(shared_place), supervisor_of(shared_place)
        sent = sixteen(connection)
        assert not any(answer.has_come for _, answer in sent)
        kill(worker)
        assert_answered(sent)
        holding.output()
        assert holding.times == 1
    assert supervisor_of(shared_place) == supervisor
    assert worker_of(shared_place) != worker
    assert any("connected to a new worker" in text and "16 requests" in text for text in logged)


def test_requests_in_flight_survive_the_supervisor(
    shared_place: RuntimePaths, connection: RuntimeClient, slow: Path
) -> None:
    with opened(shared_place, describe(slow)) as busy:
        submit(busy, SLOW_INPUT)
        supervisor, worker = supervisor_of(shared_place), worker_of(shared_place)
        sent = sixteen(connection)
        kill(supervisor)
        assert_answered(sent)
    assert not {supervisor, worker} & set(processes_of(shared_place))


def test_a_runtime_that_has_answered_is_not_one_that_fails_to_start(
    place: RuntimePaths, quick: Path
) -> None:
    """Else whoever meets it as it dies is told that no runtime can be started."""
    with opened(place, describe(quick)):
        assert start_if_absent(place) is None


def test_worker_after_worker_may_die_while_nothing_runs(
    shared_place: RuntimePaths, connection: RuntimeClient
) -> None:
    for _ in range(3):
        kill(worker_of(shared_place))
        np.testing.assert_array_equal(infer(connection, ROWS), -ROWS)


def test_a_request_that_ran_in_two_dying_workers_is_refused_by_name_and_others_go_on(
    shared_place: RuntimePaths, connection: RuntimeClient, slow: Path, logged: list[str]
) -> None:
    suspect = RuntimeClient(shared_place, describe(slow), lambda level, text: logged.append(text))
    suspect.open()
    with contextlib.closing(suspect):
        _, answer, begun = submit_marked(suspect, SLOW_INPUT)
        for _ in range(2):
            wait_until(lambda: mark_is_set(begun), "the run")
            logged.clear()
            kill(worker_of(shared_place))
            # Both connections are replayed, and marks reset, before they say so.
            wait_until(lambda: sum("new worker" in text for text in logged) == 2, "a new worker")
        error = answer.wait().error
        assert isinstance(error, InternalError)
        assert "of model 'slow' was running when 2 workers died" in str(error)
        assert answer.times == 1
        np.testing.assert_array_equal(infer(connection, ROWS), -ROWS)
        submit(suspect, SLOW_INPUT)[1].output()


def test_a_request_that_only_waited_is_not_blamed(
    shared_place: RuntimePaths, connection: RuntimeClient, slow: Path
) -> None:
    with opened(shared_place, describe(slow)) as busy:
        first, second = (submit(busy, SLOW_INPUT)[1] for _ in range(2))
        time.sleep(0.1)
        kill(worker_of(shared_place))
        first.output()
        second.output()


def test_a_cancelled_request_is_answered_even_if_its_worker_dies(
    shared_place: RuntimePaths, slow: Path
) -> None:
    with opened(shared_place, describe(slow)) as connection:
        number, answer = submit(connection, SLOW_INPUT)
        kill(worker_of(shared_place))
        connection.cancel(number)
        answer.wait()
        assert answer.times == 1


def test_a_model_that_has_gone_meanwhile_is_told_after_a_restart(
    shared_place: RuntimePaths, connection: RuntimeClient, quick: Path
) -> None:
    quick.unlink()
    kill(worker_of(shared_place))
    error = submit(connection, ROWS)[1].wait().error
    assert isinstance(error, UnavailableError)
    assert "quick.onnx" in str(error)
    with Observer(shared_place, Role.FOREGROUND) as observer:
        incidents = [incident.what for incident in observer.status().incidents]
    assert any("quick.onnx" in what for what in incidents), incidents


def test_a_file_that_is_cut_short_when_a_worker_dies_is_loaded_once_it_is_whole_again(
    shared_place: RuntimePaths, connection: RuntimeClient, quick: Path, logged: list[str]
) -> None:
    whole = quick.read_bytes()
    quick.write_bytes(whole[:-20])
    kill(worker_of(shared_place))
    errors = [submit(connection, ROWS)[1].wait().error for _ in range(5)]
    for error in errors:
        assert isinstance(error, UnavailableError)
        assert "cannot be loaded now" in str(error)
    assert sum("cannot be loaded now" in text for text in logged) == 1, "not once a request"
    quick.write_bytes(whole)

    def is_served() -> bool:
        answer = submit(connection, ROWS)[1].wait()
        return answer.error is None and np.array_equal(answer.output(), -ROWS)

    wait_until(is_served, "the next attempt")
    assert all(is_served() for _ in range(5))


def test_a_runtime_that_cannot_be_restarted_makes_requests_unavailable_not_eternal(
    place: RuntimePaths, quick: Path
) -> None:
    """The lock cannot even be opened: an error of the system, none of ours."""
    with opened(place, describe(quick)) as connection:
        place.lock_path.unlink()
        place.lock_path.mkdir()
        kill(supervisor_of(place))
        wait_until(lambda: not processes_of(place), "the end of the runtime")
        errors = [submit(connection, ROWS)[1].wait().error for _ in range(2)]
        assert all(isinstance(error, UnavailableError) for error in errors), errors
        place.lock_path.rmdir()
        deadline_s = time.monotonic() + 20.0
        while submit(connection, ROWS)[1].wait().error is not None:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)


def test_a_record_that_cannot_be_sent_breaks_the_line_instead_of_being_forgotten(
    connection: RuntimeClient,
) -> None:
    """The socket's buffer is too small for it; the next line's is not."""
    line = connection._connections[Role.FOREGROUND]._line
    assert isinstance(line, DirectSender)
    assert line._socket is not None
    line._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    staged = connection.stage((TensorForm("x" * 50_000, "FP32", (1, 4)),), [16])
    answer = Answer()
    connection.submit(staged, ["y"], "normal", None, answer)
    assert isinstance(answer.wait().error, InvalidRequestError)
    np.testing.assert_array_equal(infer(connection, ROWS), -ROWS)


def test_a_runtime_that_nobody_needs_ends_and_leaves_nothing(
    place: RuntimePaths, quick: Path
) -> None:
    with opened(place, describe(quick)) as connection:
        infer(connection, ROWS)
        time.sleep(1.2)
        assert len(processes_of(place)) == 2, "it is needed while a connection is open"
    time.sleep(0.3)
    assert len(processes_of(place)) == 2, "it waits for the next one for a while"
    wait_until(lambda: not processes_of(place), "the end of the runtime")
    assert not place.base.exists()


def test_a_connection_that_comes_as_a_runtime_ends_is_served(
    place: RuntimePaths, quick: Path
) -> None:
    with opened(place, describe(quick)) as connection:
        infer(connection, ROWS)
    time.sleep(1.0)
    with opened(place, describe(quick)) as connection:
        np.testing.assert_array_equal(infer(connection, ROWS), -ROWS)


def test_a_supervisor_told_to_end_ends_its_worker_and_leaves_nothing(
    place: RuntimePaths, quick: Path
) -> None:
    with opened(place, describe(quick)) as connection:
        infer(connection, ROWS)
        supervisor, worker = supervisor_of(place), worker_of(place)
        os.kill(supervisor, signal.SIGTERM)
        wait_until(lambda: not {supervisor, worker} & set(processes_of(place)), "their end")
        np.testing.assert_array_equal(infer(connection, ROWS), -ROWS)


def test_a_second_runtime_for_a_place_gives_way(
    shared_place: RuntimePaths, connection: RuntimeClient
) -> None:
    before = processes_of(shared_place)
    environment = {
        **os.environ,
        "BRISK_RUNTIME_DIR": str(shared_place.base),
        "PYTHONPATH": str(Path(__file__).parents[2] / "triton_backend"),
    }
    second = subprocess.run(
        [sys.executable, "-m", "brisk.runtime"], env=environment, timeout=30.0, check=False
    )
    assert second.returncode == 0
    assert processes_of(shared_place) == before
    np.testing.assert_array_equal(infer(connection, ROWS), -ROWS)
