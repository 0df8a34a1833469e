"""Runs that go on side by side, each on one processor, where requests crowd."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from brisk.errors import CancelledError
from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.runtime.models.yielding import LONGEST_ALONE_S
from brisk.stub.runtime_client.client import RuntimeClient
from brisk.telemetry.observer import Observer
from support.runtime.runtime_process import (
    SLOW_INPUT,
    Answer,
    building_runtime,
    describe,
    infer,
    kill,
    opened,
    slow_model,
    submit,
    worker_of,
)
from support.runtime.runtime_processes import hurry_helpers
from support.waiting import TIMED, wait_until

pytestmark = [pytest.mark.timing, pytest.mark.beside]

STEPS = 16
CROWD = 4
ROW = np.ones((1, 4), np.float32)


@pytest.fixture(scope="module")
def two_processors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimePaths]:
    """A runtime of two threads that makes prepared forms."""
    folder = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("BRISK_CACHE_DIR", str(folder / "cache"))
        environment.setenv("BRISK_SAMPLED_SHARE", "0")
        with building_runtime(folder, environment, threads=2) as place:
            yield place


@pytest.fixture(scope="module")
def connection(
    two_processors: RuntimePaths, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RuntimeClient]:
    """Of a model whose runs take some 50 ms, and which is prepared once it is settled."""
    path = tmp_path_factory.mktemp("crowded") / "crowded.onnx"
    with opened(two_processors, describe(slow_model(path, STEPS))) as made:
        yield made


@pytest.fixture
def crowd(
    connection: RuntimeClient, two_processors: RuntimePaths, request: pytest.FixtureRequest
) -> Iterator[Crowd]:
    with Observer(two_processors, Role.FOREGROUND) as observer:

        def is_settled() -> bool:
            hurry_helpers(two_processors.base)
            models = observer.status().models
            return any(each.name == "crowded" and each.is_settled for each in models)

        with TIMED:
            wait_until(is_settled, "the prepared form", every_s=0.1)
        yield Crowd(connection, observer, getattr(request, "param", "normal"))


class Crowd:
    """So many requests are in flight, until ``end``; every answer is compared with the one
    computed alone."""

    def __init__(
        self, connection: RuntimeClient, observer: Observer, job_class: str = "normal"
    ) -> None:
        self._job_class = job_class
        self.deadline_s: float | None = None
        self.expected = infer(connection, SLOW_INPUT)
        self._connection = connection
        self._observer = observer
        self._waiting: list[tuple[int, Answer]] = []
        self.answered = 0

    def go_on(self) -> None:
        """Take what has been answered, and ask again."""
        done = [answer for _, answer in self._waiting if answer.has_come]
        self._waiting = [each for each in self._waiting if not each[1].has_come]
        for answer in done:
            self._take(answer)
        while len(self._waiting) < CROWD:
            due_ns = None
            if self.deadline_s is not None:
                due_ns = time.monotonic_ns() + round(self.deadline_s * 1e9)
            self._waiting.append(submit(self._connection, SLOW_INPUT, self._job_class, due_ns))

    def _take(self, answer: Answer) -> None:
        assert answer.output().tobytes() == self.expected.tobytes()
        assert answer.times == 1
        self.answered += 1

    def go_on_for(self, answers: int) -> None:
        until = self.answered + answers
        while self.answered < until:
            self.go_on()

    def await_two(self, more: int = 0) -> None:
        """Go on until two runs are computed at once, behind so many more answers."""
        least = self.answered + more

        def are_two() -> bool:
            self.go_on()
            return at_once(self._observer) == 2 and self.answered >= least

        with TIMED:
            wait_until(are_two, "two runs at once")

    def most_at_once(self, answers: int) -> int:
        """Of the runs that are computed while so many more are answered, and until one was seen:
        on a busy machine all of a crowd may be answered between two looks."""
        most, until = 0, self.answered + answers
        while self.answered < until or not most:
            self.go_on()
            most = max(most, at_once(self._observer))
        self.end()
        return most

    def await_none(self) -> None:
        with TIMED:
            wait_until(lambda: at_once(self._observer) == 0, "the end of all runs")

    def end(self) -> None:
        for _, answer in self._waiting:
            self._take(answer)
        self._waiting.clear()

    def cancel(self) -> None:
        for number, _ in self._waiting:
            self._connection.cancel(number)
        for _, answer in self._waiting:
            assert answer.wait().error is None or isinstance(answer.error, CancelledError)
        self._waiting.clear()


def at_once(observer: Observer) -> int:
    """Runs that are computed now."""
    return sum(not run.is_parked for run in observer.status().runs)


def test_runs_go_on_side_by_side_where_requests_crowd(crowd: Crowd) -> None:
    crowd.await_two()
    crowd.await_two(more=4)
    crowd.end()
    crowd.await_none()


def test_a_run_that_is_cancelled_ends_whoever_computes_it(crowd: Crowd) -> None:
    crowd.await_two()
    crowd.cancel()
    crowd.await_none()


def test_a_load_that_is_to_be_alone_waits_for_companions_and_is_not_kept_waiting_by_them(
    crowd: Crowd, two_processors: RuntimePaths, quick: Path
) -> None:
    """One that has ended a worker: nothing may run beside it, and others wait meanwhile."""
    crowd.await_two()
    for _ in range(4):
        crowd.go_on()
        begun_s = time.monotonic()
        with opened(two_processors, describe(quick, strikes=1)) as other:
            np.testing.assert_array_equal(infer(other, ROW), -ROW)
        with TIMED:
            assert time.monotonic() - begun_s < LONGEST_ALONE_S / 3
    crowd.end()


def test_what_was_under_way_when_the_worker_died_is_computed_again_and_answered_once(
    crowd: Crowd, two_processors: RuntimePaths
) -> None:
    crowd.await_two()
    kill(worker_of(two_processors))
    crowd.end()


def test_beside_a_real_time_model_runs_take_turns(
    crowd: Crowd, two_processors: RuntimePaths, quick: Path
) -> None:
    crowd.await_two()
    crowd.end()
    with opened(two_processors, describe(quick, job_class="realtime")):
        assert crowd.most_at_once(24) == 1


def test_behind_a_real_time_request_runs_take_turns(
    crowd: Crowd, two_processors: RuntimePaths, quick: Path
) -> None:
    """Of a model whose requests are normal unless they say otherwise; also those of a crowd that
    it comes upon. No normal crowd may follow in this file."""
    with opened(two_processors, describe(quick)) as other:
        crowd.await_two()
        _, urgent = submit(other, ROW, "realtime")
        while not urgent.has_come:
            crowd.go_on()
        np.testing.assert_array_equal(urgent.output(), -ROW)
        crowd.go_on_for(CROWD)  # what had begun by then
        assert crowd.most_at_once(16) == 1
        assert crowd.most_at_once(16) == 1


@pytest.mark.parametrize("crowd", ["realtime"], indirect=True)
def test_real_time_runs_go_on_side_by_side_where_real_time_requests_crowd(
    crowd: Crowd, connection: RuntimeClient
) -> None:
    """Normal requests among them have their turns, and then the crowd goes on as before."""
    crowd.await_two()
    for _ in range(3):
        _, normal = submit(connection, SLOW_INPUT)
        while not normal.has_come:
            crowd.go_on()
        assert normal.output().tobytes() == crowd.expected.tobytes()
        crowd.await_two(more=4)
    crowd.end()
    crowd.await_none()


@pytest.mark.parametrize("crowd", ["realtime"], indirect=True)
def test_real_time_requests_with_a_deadline_take_turns(crowd: Crowd) -> None:
    """The first one would be late if it shared the processors with the second."""
    crowd.await_two()
    crowd.end()
    crowd.deadline_s = 10.0
    assert crowd.most_at_once(16) == 1
