"""Real-time work and real workers: who is held, who goes first, and what frees who was held."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from brisk.errors import UnavailableError
from brisk.protocol.runtime_paths import RuntimePaths
from brisk.stub.runtime_client.client import RuntimeClient
from support.runtime.runtime_process import (
    SLOW_INPUT,
    describe,
    kill,
    opened,
    own_place,
    quick_model,
    slow_model,
    submit,
    submit_and_see_begin,
)
from support.runtime.two_workers import foreground_worker_of
from support.waiting import TIMED

pytestmark = pytest.mark.timing

ROWS = np.arange(40, dtype=np.float32).reshape(10, 4)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A slow one and a quick one."""
    directory = tmp_path_factory.mktemp("models")
    return slow_model(directory / "slow.onnx", steps=150), quick_model(directory / "quick.onnx")


@pytest.fixture(scope="module")
def strict(models: tuple[Path, Path]) -> Iterator[RuntimePaths]:
    """A runtime that lets best-effort segments run only while there is no real-time work."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("BRISK_THREADS", "1")
        environment.setenv("BRISK_POLICY", "preemptive")
        with own_place() as place, opened(place, describe(models[1])):
            yield place


@pytest.fixture
def slow(strict: RuntimePaths, models: tuple[Path, Path]) -> Iterator[RuntimeClient]:
    with opened(strict, describe(models[0])) as connection:
        yield connection


@pytest.fixture
def quick(strict: RuntimePaths, models: tuple[Path, Path]) -> Iterator[RuntimeClient]:
    with opened(strict, describe(models[1])) as connection:
        submit(connection, ROWS, "besteffort")[1].output()
        yield connection


def test_best_effort_work_waits_for_real_time_work_and_not_for_normal_work(
    slow: RuntimeClient, quick: RuntimeClient
) -> None:
    urgent, _ = submit_and_see_begin(slow, "realtime")
    lazy = submit(quick, ROWS, "besteffort")[1]
    np.testing.assert_array_equal(lazy.output(), -ROWS)
    urgent.output()
    assert lazy.ended_ns > urgent.ended_ns, "it was held, or its worker had no processor"
    number, normal = submit(slow, SLOW_INPUT, "normal")
    np.testing.assert_array_equal(submit(quick, ROWS, "besteffort")[1].output(), -ROWS)
    assert not normal.has_come
    slow.cancel(number)
    normal.wait()


def test_real_time_work_takes_the_place_of_normal_work_which_then_ends_right(
    slow: RuntimeClient, quick: RuntimeClient
) -> None:
    undisturbed = submit(slow, SLOW_INPUT)[1].output()
    normal = submit(slow, SLOW_INPUT)[1]
    urgent = [submit(quick, ROWS, "realtime")[1] for _ in range(50)]
    for answer in urgent:
        np.testing.assert_array_equal(answer.output(), -ROWS)
    np.testing.assert_array_equal(normal.output(), undisturbed)
    assert all(answer.ended_ns < normal.ended_ns for answer in urgent)


def test_a_real_time_client_that_vanishes_lets_best_effort_work_go_on(
    strict: RuntimePaths, models: tuple[Path, Path], quick: RuntimeClient
) -> None:
    with opened(strict, describe(models[0])) as gone:
        for _ in range(30):
            submit(gone, SLOW_INPUT, "realtime")
        time.sleep(0.1)
        lazy = submit(quick, ROWS, "besteffort")[1]
        time.sleep(0.2)
        assert not lazy.has_come, "ten seconds of real-time work are before it"
    started_s = time.monotonic()
    np.testing.assert_array_equal(lazy.output(), -ROWS)
    with TIMED:
        assert time.monotonic() - started_s < 1.0, "at the end of the segment that ran"


def test_a_foreground_worker_that_dies_in_real_time_work_leaves_no_gate_closed(
    strict: RuntimePaths, models: tuple[Path, Path], quick: RuntimeClient
) -> None:
    with opened(strict, describe(models[0])) as gone:
        submit(gone, SLOW_INPUT, "realtime")
        time.sleep(0.1)
        kill(foreground_worker_of(strict))
        lazy = submit(quick, ROWS, "besteffort")[1]
    np.testing.assert_array_equal(lazy.output(), -ROWS)
    np.testing.assert_array_equal(submit(quick, ROWS, "realtime")[1].output(), -ROWS)


def test_a_real_time_request_that_must_be_late_is_refused_at_once(
    slow: RuntimeClient, quick: RuntimeClient
) -> None:
    for _ in range(3):  # how long a run takes is learnt
        began_ns = time.monotonic_ns()
        submit(slow, SLOW_INPUT, "realtime")[1].output()
    half_a_run_ns = (time.monotonic_ns() - began_ns) // 2
    sent_s = time.monotonic()
    deadline_ns = time.monotonic_ns() + half_a_run_ns
    error = submit(slow, SLOW_INPUT, "realtime", deadline_ns)[1].wait().error
    assert isinstance(error, UnavailableError)
    assert "cannot be met" in str(error)
    assert "give it a longer time-out" in str(error), "it is late also on an idle device"
    with TIMED:
        assert time.monotonic() - sent_s < half_a_run_ns / 1e9, "at once: before it is late"
    late = submit(slow, SLOW_INPUT, "normal", time.monotonic_ns() + half_a_run_ns)[1].wait().error
    assert "time-out ran out" in str(late), "only real-time requests are refused beforehand"


def test_a_full_queue_makes_room_for_real_time_work_and_says_when_to_try_again(
    strict: RuntimePaths, models: tuple[Path, Path]
) -> None:
    """One runs, two wait, which is the bound: the next of their class is refused."""
    with opened(strict, describe(models[0], max_queue_size=2)) as connection:
        submit(connection, SLOW_INPUT)[1].output()
        _, running = submit_and_see_begin(connection)
        sent = [submit(connection, SLOW_INPUT) for _ in range(3)]
        refused = sent[2][1].wait().error
        assert isinstance(refused, UnavailableError)
        assert "2 requests of model 'slow' wait already" in str(refused)
        assert "retry in" in str(refused)
        _, urgent = submit(connection, SLOW_INPUT, "realtime")
        shed = sent[1][1].wait().error
        assert isinstance(shed, UnavailableError)
        assert "a more urgent request took its place in the queue; retry in" in str(shed)
        urgent.output()
        assert not sent[0][1].has_come, "the real-time request went before it"
        for number in (running, sent[0][0]):
            connection.cancel(number)
