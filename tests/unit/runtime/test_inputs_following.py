"""Requests whose records are sent ahead of their inputs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from brisk.errors import CancelledError
from brisk.protocol.host.runtime_paths import RuntimePaths
from brisk.protocol.records import Infer, InferForm, Region, TensorForm
from brisk.protocol.shared_memory import request_flags
from brisk.runtime.requests.connections import Peer
from brisk.runtime.requests.pending_inputs import AWAKE_NS, Arriving
from brisk.stub.runtime_client import client as connecting
from brisk.stub.runtime_client.client import RuntimeClient
from unit.runtime.runtime_process import (
    Answer,
    describe,
    infer,
    kill,
    opened,
    quick_model,
    worker_of,
)
from waiting import wait_until

ROW = np.ones((1, 4), np.float32)
ROWS = 8192
"""Of four floats: 128 KB, which follow their record."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quick_model(tmp_path_factory.mktemp("models") / "following.onnx")


@pytest.fixture
def connection(shared_place: RuntimePaths, models: Path) -> Iterator[RuntimeClient]:
    with opened(shared_place, describe(models)) as connection:
        yield connection


def ahead(
    connection: RuntimeClient, value: np.ndarray, before: Callable[[], None] = lambda: None
) -> Answer:
    """Ask for ``-value``; ``before`` is called when the record is sent and no input written."""
    staged = connection.stage((TensorForm("x", "FP32", value.shape),), [value.nbytes])
    memory = connection.memory(staged.regions[0])
    memory[:] = bytes(len(memory))
    answer = Answer()

    def write() -> None:
        before()
        memory[:] = value.tobytes()

    connection.submit(staged, ["y"], "normal", None, answer, write=write)
    return answer


def random_rows(seed: int, count: int = ROWS) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 4)).astype(np.float32)


def test_nothing_is_computed_before_the_inputs_are_there(connection: RuntimeClient) -> None:
    value = random_rows(0)
    answer = ahead(connection, value, lambda: time.sleep(0.05))
    np.testing.assert_array_equal(answer.output(), -value)


def test_others_are_served_while_inputs_are_awaited(
    connection: RuntimeClient, shared_place: RuntimePaths, models: Path
) -> None:
    value = random_rows(1)
    with opened(shared_place, describe(models)) as other:

        def ask_another() -> None:
            for _ in range(5):
                np.testing.assert_array_equal(infer(other, ROW), -ROW)

        np.testing.assert_array_equal(ahead(connection, value, ask_another).output(), -value)


def test_many_requests_of_many_sizes_are_answered_right(
    shared_place: RuntimePaths, models: Path
) -> None:
    """Three frontends at once; sizes that follow, and sizes that do not."""
    wrong: list[str] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        with opened(shared_place, describe(models)) as connection:
            for number in range(100):
                value = random_rows(number, int(random.choice([1, 100, 5000, 20_000, 150_000])))
                if not np.array_equal(ahead(connection, value).output(), -value):
                    wrong.append(f"{seed}, {number}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_inputs_that_cannot_be_written_end_their_request(connection: RuntimeClient) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    staged = connection.stage((TensorForm("x", "FP32", (ROWS, 4)),), [ROWS * 16])
    answer = Answer()
    with pytest.raises(ZeroDivisionError):
        connection.submit(staged, ["y"], "normal", None, answer, write=fail)
    assert isinstance(answer.wait().error, CancelledError)
    assert (answer.times, connection.statistics()["pending"]) == (1, 0)
    np.testing.assert_array_equal(infer(connection, ROW), -ROW)


def test_inputs_that_cannot_be_written_ahead_of_their_record_leave_nothing(
    connection: RuntimeClient,
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    before = connection.statistics()
    staged = connection.stage((TensorForm("x", "FP32", (1, 4)),), [16])
    with pytest.raises(ZeroDivisionError):
        connection.submit(staged, ["y"], "normal", None, Answer(), write=fail)
    assert connection.statistics() == before


def test_a_worker_that_dies_while_inputs_are_written_costs_nothing(
    place: RuntimePaths, quick: Path
) -> None:
    value = random_rows(2)
    with opened(place, describe(quick)) as connection:

        def die() -> None:
            worker = worker_of(place)
            kill(worker)
            wait_until(lambda: worker_of(place) != worker, "another worker")
            time.sleep(0.2)  # the request is sent again meanwhile

        answer = ahead(connection, value, die)
        np.testing.assert_array_equal(answer.output(), -value)
        assert answer.times == 1


def test_a_frontend_that_dies_while_it_writes_is_forgotten(
    connection: RuntimeClient, shared_place: RuntimePaths, models: Path
) -> None:
    with opened(shared_place, describe(models)) as dying:

        def close() -> None:
            dying.close()
            np.testing.assert_array_equal(infer(connection, ROW), -ROW)

        assert ahead(dying, random_rows(3), close).wait().error is not None
    np.testing.assert_array_equal(infer(connection, ROW), -ROW)


@pytest.mark.parametrize(
    ("size", "role", "can", "expected"),
    [
        (connecting.LEAST_FOLLOWING_BYTES, connecting.Role.FOREGROUND, True, True),
        (connecting.LEAST_FOLLOWING_BYTES - 1, connecting.Role.FOREGROUND, True, False),
        (connecting.MOST_FOLLOWING_BYTES + 1, connecting.Role.FOREGROUND, True, False),
        (connecting.LEAST_FOLLOWING_BYTES, connecting.Role.BACKGROUND, True, False),
        (connecting.LEAST_FOLLOWING_BYTES, connecting.Role.FOREGROUND, False, False),
    ],
)
def test_inputs_follow_where_it_pays(
    size: int,
    role: connecting.Role,
    can: bool,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connecting, "CAN_FOLLOW", can)
    assert connecting._may_follow(role, size) is expected


def request(number: int) -> Infer:
    return Infer(
        number, InferForm(0, (), (), "normal"), (), Region(0, 0, request_flags.MARK_BYTES)
    )


def test_the_worker_sleeps_a_little_where_inputs_do_not_come() -> None:
    clock = iter(range(0, 100 * AWAKE_NS, AWAKE_NS // 3)).__next__
    arriving, memory = Arriving(clock), memoryview(bytearray(request_flags.MARK_BYTES))
    peer = object.__new__(Peer)
    request_flags.let_inputs_follow(memory, True)
    arriving.add(peer, request(1), memory)
    assert arriving.patience_s == 0.0
    arriving.wait()
    assert arriving.patience_s > 0.0
    assert arriving.take() == []
    request_flags.inputs_are_there(memory)
    assert arriving.take() == [(peer, request(1))]
    assert not arriving


def test_requests_are_withdrawn_and_forgotten_one_by_one() -> None:
    arriving, memory = Arriving(), memoryview(bytearray(request_flags.MARK_BYTES))
    request_flags.let_inputs_follow(memory, True)
    one, other = object.__new__(Peer), object.__new__(Peer)
    for number in (1, 2):
        arriving.add(one, request(number), memory)
        arriving.add(other, request(number), memory)
    assert arriving.withdraw(one, 1)
    assert not arriving.withdraw(one, 1)
    arriving.forget(other)
    request_flags.inputs_are_there(memory)
    assert arriving.take() == [(one, request(2))]
