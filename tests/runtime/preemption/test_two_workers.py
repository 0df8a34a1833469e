"""Best-effort requests have a worker of their own, and nothing it does is anybody else's loss."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from brisk.protocol.runtime_paths import RuntimePaths
from brisk.stub.runtime_client.client import RuntimeClient
from support.runtime.runtime_process import (
    SLOW_INPUT,
    background_worker_of,
    describe,
    kill,
    opened,
    processes_of,
    submit,
    submit_and_see_begin,
    supervisor_of,
)
from support.runtime.two_workers import await_best_effort, background, foreground_worker_of
from support.waiting import TIMED, wait_until

pytestmark = [pytest.mark.timing, pytest.mark.beside]

ROWS = np.arange(40, dtype=np.float32).reshape(10, 4)


def answer_in(connection: RuntimeClient, job_class: str) -> np.ndarray:
    return submit(connection, ROWS, job_class)[1].output()


def test_the_background_worker_comes_with_the_first_best_effort_request(
    place: RuntimePaths, quick: Path
) -> None:
    with opened(place, describe(quick)) as connection:
        for job_class in ("realtime", "normal"):
            np.testing.assert_array_equal(answer_in(connection, job_class), -ROWS)
        assert background_worker_of(place) is None
        assert len(processes_of(place)) == 2
        np.testing.assert_array_equal(answer_in(connection, "besteffort"), -ROWS)
        worker = background(place)
        assert worker != foreground_worker_of(place)
        assert os.getpriority(os.PRIO_PROCESS, worker) == 19
        assert os.sched_getscheduler(foreground_worker_of(place)) == os.SCHED_OTHER
        score = int(Path(f"/proc/{worker}/oom_score_adj").read_text())
        assert score > int(Path(f"/proc/{supervisor_of(place)}/oom_score_adj").read_text())


def test_a_best_effort_model_is_loaded_in_the_background_alone(
    shared_place: RuntimePaths, quick: Path
) -> None:
    lazy = describe(quick, job_class="besteffort")
    with opened(shared_place, lazy) as connection:
        np.testing.assert_array_equal(answer_in(connection, "besteffort"), -ROWS)
        second = RuntimeClient(shared_place, lazy, lambda level, text: None)
        assert second.open() == 0, "the background worker has it"
        second.close()
        urgent = RuntimeClient(shared_place, describe(quick), lambda level, text: None)
        assert urgent.open() > 0, "the foreground worker had to load it"
        urgent.close()


def test_a_background_worker_killed_while_it_runs_costs_nobody_an_answer(
    shared_place: RuntimePaths, connection: RuntimeClient, slow: Path, logged: list[str]
) -> None:
    answer_in(connection, "besteffort")
    with opened(shared_place, describe(slow, job_class="besteffort")) as lazy:
        long, _ = submit_and_see_begin(lazy, "besteffort")
        foreground, before = foreground_worker_of(shared_place), background(shared_place)
        os.kill(before, signal.SIGSTOP)  # so that it answers none of these
        held = [submit(connection, ROWS + n, "besteffort")[1] for n in range(8)]
        kill(before)
        for _ in range(20):
            np.testing.assert_array_equal(answer_in(connection, "realtime"), -ROWS)
        for number, answer in enumerate(held):
            np.testing.assert_array_equal(answer.output(), -(ROWS + number))
            assert answer.times == 1
        await_best_effort(shared_place, long).output()
    assert foreground_worker_of(shared_place) == foreground
    assert background(shared_place) != before
    (told,) = [text for text in logged if "new worker" in text]
    assert "8 requests replayed" in told


def test_a_foreground_worker_killed_does_not_touch_best_effort_requests(
    shared_place: RuntimePaths, connection: RuntimeClient, slow: Path
) -> None:
    with opened(shared_place, describe(slow, job_class="besteffort")) as lazy:
        _, long = submit(lazy, SLOW_INPUT, "besteffort")
        worker = background(shared_place)
        kill(foreground_worker_of(shared_place))
        np.testing.assert_array_equal(answer_in(connection, "realtime"), -ROWS)
        await_best_effort(shared_place, long).output()
        assert background(shared_place) == worker


def test_a_best_effort_request_for_a_runtime_that_has_gone_is_answered_by_the_next(
    place: RuntimePaths, quick: Path
) -> None:
    with opened(place, describe(quick)) as connection:
        answer_in(connection, "besteffort")
        kill(supervisor_of(place))
        for job_class in ("besteffort", "realtime"):
            np.testing.assert_array_equal(answer_in(connection, job_class), -ROWS)


def test_an_idle_background_worker_ends_and_comes_again_when_asked_for(
    place: RuntimePaths, quick: Path
) -> None:
    with opened(place, describe(quick)) as connection:
        with opened(place, describe(quick, job_class="besteffort")) as lazy:
            answer_in(lazy, "besteffort")
        with TIMED:
            wait_until(lambda: background_worker_of(place) is None, "the end of the idle worker")
        np.testing.assert_array_equal(answer_in(connection, "realtime"), -ROWS)
        np.testing.assert_array_equal(answer_in(connection, "besteffort"), -ROWS)
    with TIMED:
        wait_until(lambda: not processes_of(place), "the end of the runtime")
