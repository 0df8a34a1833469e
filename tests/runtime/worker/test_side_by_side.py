"""Runs that go on side by side, each on one processor, where requests crowd."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from brisk.errors import CancelledError
from brisk.observer import Observer
from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.runtime.models.yielding import LONGEST_ALONE_S
from brisk.stub.runtime_client.client import RuntimeClient
from support.runtime.runtime_process import (
    SLOW_INPUT,
    Answer,
    describe,
    end_processes,
    infer,
    kill,
    opened,
    quick_model,
    slow_model,
    submit,
    worker_of,
)
from support.waiting import TIMED, wait_until

pytestmark = [pytest.mark.timing, pytest.mark.beside]

STEPS = 16
CROWD = 4
ROW = np.ones((1, 4), np.float32)


@pytest.fixture
def two_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private_cache: None
) -> Iterator[RuntimePaths]:
    """A runtime of two threads that makes prepared forms, with a small model loaded."""
    parent = Path(tempfile.mkdtemp(prefix="brisk-"))
    place = RuntimePaths(parent / "runtime", "cpu")
    monkeypatch.setenv("BRISK_ARTEFACTS", "build")
    monkeypatch.setenv("BRISK_THREADS", "2")
    with opened(place, describe(quick_model(tmp_path / "other.onnx"))):
        yield place
    end_processes(place)
    shutil.rmtree(parent)


@contextlib.contextmanager
def settled(place: RuntimePaths, folder: Path) -> Iterator[RuntimeClient]:
    """Of a model whose runs take some 50 ms, prepared."""
    (folder / "crowded").mkdir()
    description = describe(slow_model(folder / "crowded" / "crowded.onnx", STEPS))
    with opened(place, description) as connection, Observer(place, Role.FOREGROUND) as observer:

        def is_settled() -> bool:
            models = observer.status().models
            return any(each.name == description.name and each.is_settled for each in models)

        with TIMED:
            wait_until(is_settled, "the prepared form")
        yield connection


class Crowd:
    """So many requests are in flight, until ``end``; every answer is compared with the one
    computed alone."""

    def __init__(self, connection: RuntimeClient) -> None:
        self.expected = infer(connection, SLOW_INPUT)
        self._connection = connection
        self._waiting: list[tuple[int, Answer]] = []
        self.answered = 0

    def go_on(self) -> None:
        """Take what has been answered, and ask again."""
        done = [answer for _, answer in self._waiting if answer.has_come]
        self._waiting = [each for each in self._waiting if not each[1].has_come]
        for answer in done:
            self._take(answer)
        while len(self._waiting) < CROWD:
            self._waiting.append(submit(self._connection, SLOW_INPUT))

    def _take(self, answer: Answer) -> None:
        assert answer.output().tobytes() == self.expected.tobytes()
        assert answer.times == 1
        self.answered += 1

    def end(self) -> None:
        for _, answer in self._waiting:
            self._take(answer)

    def cancel(self) -> None:
        for number, _ in self._waiting:
            self._connection.cancel(number)
        for _, answer in self._waiting:
            assert answer.wait().error is None or isinstance(answer.error, CancelledError)
        self._waiting.clear()


def at_once(observer: Observer) -> int:
    """Runs that are computed now."""
    return sum(not run.is_parked for run in observer.status().runs)


def test_runs_go_on_side_by_side_where_requests_crowd(
    two_processors: RuntimePaths, tmp_path: Path
) -> None:
    with (
        settled(two_processors, tmp_path) as connection,
        Observer(two_processors, Role.FOREGROUND) as observer,
    ):
        crowd = Crowd(connection)

        def are_two() -> bool:
            crowd.go_on()
            return at_once(observer) == 2

        with TIMED:
            wait_until(are_two, "two runs at once")
        before = crowd.answered
        with TIMED:
            wait_until(lambda: are_two() and crowd.answered > before + 4, "four more answers")
        crowd.end()
        wait_until(lambda: at_once(observer) == 0, "the end of all runs")
        np.testing.assert_array_equal(infer(connection, SLOW_INPUT), crowd.expected)

        # one that is cancelled while it is computed ends, whoever computes it
        with TIMED:
            wait_until(are_two, "two runs at once again")
        crowd.cancel()
        with TIMED:
            wait_until(lambda: at_once(observer) == 0, "the end of what was cancelled")

        # what was under way when the worker died is computed again, and answered once
        with TIMED:
            wait_until(are_two, "two runs at once once more")
        kill(worker_of(two_processors))
        crowd.end()


def test_a_load_that_is_to_be_alone_waits_for_companions_and_is_not_kept_waiting_by_them(
    two_processors: RuntimePaths, tmp_path: Path, quick: Path
) -> None:
    """One that has ended a worker: nothing may run beside it, and others wait meanwhile."""
    with (
        settled(two_processors, tmp_path) as connection,
        Observer(two_processors, Role.FOREGROUND) as observer,
    ):
        crowd = Crowd(connection)

        def are_two() -> bool:
            crowd.go_on()
            return at_once(observer) == 2

        with TIMED:
            wait_until(are_two, "two runs at once")
        for _ in range(4):
            crowd.go_on()
            begun_s = time.monotonic()
            with opened(two_processors, describe(quick, strikes=1)) as other:
                np.testing.assert_array_equal(infer(other, ROW), -ROW)
            with TIMED:
                assert time.monotonic() - begun_s < LONGEST_ALONE_S / 3
        crowd.end()


def test_beside_a_real_time_model_runs_take_turns(
    two_processors: RuntimePaths, tmp_path: Path, quick: Path
) -> None:
    with (
        settled(two_processors, tmp_path) as connection,
        opened(two_processors, describe(quick, job_class="realtime")) as urgent,
        Observer(two_processors, Role.FOREGROUND) as observer,
    ):
        infer(urgent, ROW)
        crowd = Crowd(connection)
        most = 0
        while crowd.answered < 24:
            crowd.go_on()
            most = max(most, at_once(observer))
        crowd.end()
    assert most == 1


def test_behind_a_real_time_request_runs_take_turns(
    two_processors: RuntimePaths, tmp_path: Path, quick: Path
) -> None:
    """Of a model whose requests are normal unless they say otherwise."""
    with (
        settled(two_processors, tmp_path) as connection,
        opened(two_processors, describe(quick)) as other,
        Observer(two_processors, Role.FOREGROUND) as observer,
    ):
        crowd = Crowd(connection)

        def are_two() -> bool:
            crowd.go_on()
            return at_once(observer) == 2

        with TIMED:
            wait_until(are_two, "two runs at once")
        np.testing.assert_array_equal(submit(other, ROW, "realtime")[1].output(), -ROW)
        crowd.end()
        most, before = 0, crowd.answered
        while crowd.answered < before + 16:
            crowd.go_on()
            most = max(most, at_once(observer))
        crowd.end()
    assert most == 1
