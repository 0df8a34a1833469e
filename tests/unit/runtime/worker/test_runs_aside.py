"""What a background worker shows of segments that others do not wait for."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from brisk.os_priority import Precedence
from brisk.runtime.requests.batch import RunsInProgress
from brisk.runtime.worker.long_runs import STALLED_NS, STARVED_NS, LongRuns
from brisk.runtime.worker.relay import Step
from brisk.scheduling.job import JobState
from brisk.scheduling.job_class import JobClass
from brisk.scheduling.times import RunProfile
from support.runtime.gates import Pair, job, run_of
from support.runtime.requests import ASession


def test_a_segment_that_is_left_aside_runs_until_it_is_taken_back() -> None:
    pair, runs = Pair("preemptive"), RunsInProgress()
    one, following = (job(number, JobClass.BESTEFFORT) for number in range(2))
    one.state = JobState.RUNNING
    requests: Any = SimpleNamespace(
        queue=SimpleNamespace(peek=lambda: following), fail_all_late=lambda *_: None
    )
    precedence: Any = SimpleNamespace(
        stand_aside=lambda thread: frozenset(), rejoin=lambda helpers: None
    )
    none: Any = None
    long_runs = LongRuns(requests, none, runs, pair.background, precedence)
    run = run_of(one)
    runs.leading.append(run)
    assert not pair.background.holds(run, 0)
    step = Step(run, time.monotonic_ns() - STARVED_NS)
    assert long_runs.attend(step, is_load_waiting=False)
    assert not long_runs.has_realtime
    assert pair.gate.page.segment_runs
    pair.background.pauses()  # the other run is over
    assert pair.gate.page.segment_runs
    long_runs.take_back(step)
    pair.background.pauses()
    assert not pair.gate.page.segment_runs


def test_real_time_runs_count_wherever_they_are_computed() -> None:
    pair, runs = Pair("preemptive"), RunsInProgress()
    none: Any = None
    long_runs = LongRuns(none, none, runs, pair.background, none)
    one = run_of(job(1))
    places: list[tuple[list[Any], Any]] = [
        (runs.leading, one),
        (runs.companions, one),
        (long_runs.aside, Step(one, 0)),
    ]
    for place, computed in places:
        assert not long_runs.has_realtime
        place.append(computed)
        assert long_runs.has_realtime
        place.clear()


@pytest.mark.parametrize("role", ["foreground", "background"])
def test_a_step_that_others_keep_from_the_processors_is_not_put_aside_for_its_own_class(
    role: str,
) -> None:
    pair, runs = Pair("preemptive"), RunsInProgress()
    job_class = JobClass.BESTEFFORT if role == "background" else JobClass.NORMAL
    one, following = job(0, job_class), job(1, job_class)
    one.state = JobState.RUNNING
    requests: Any = SimpleNamespace(
        queue=SimpleNamespace(peek=lambda: following), fail_all_late=lambda *_: None
    )
    none: Any = None
    controller = getattr(pair, role)
    long_runs = LongRuns(requests, none, runs, controller, Precedence(0, print, set))
    run = run_of(one)
    runs.leading.append(run)
    with thread() as (computes_for, number):
        step = Step(run, time.monotonic_ns() - 2 * STALLED_NS, number)
        assert long_runs.attend(step, is_load_waiting=False) is (role == "foreground")
        if role == "foreground":
            return
        session: Any = run.session
        for name in ("awaits_load", "awaits_bytes"):
            setattr(session, name, True)
            assert long_runs._is_stalled(step, time.monotonic_ns()), "it is not kept from anything"
            setattr(session, name, False)
        computes_for(0.5)
        assert not long_runs.attend(step, is_load_waiting=False)
        computes_for(0.6)
        assert long_runs.attend(step, is_load_waiting=False)


@pytest.mark.parametrize("is_narrow", [False, True])
def test_a_run_on_one_thread_may_take_as_many_times_as_long_as_there_are_threads_else(
    is_narrow: bool,
) -> None:
    pair, runs, profile = Pair("preemptive"), RunsInProgress(), RunProfile()
    profile.learn(STALLED_NS)
    none: Any = None
    long_runs = LongRuns(none, none, runs, pair.foreground, Precedence(0, print, set))
    run = run_of(job(0, JobClass.NORMAL), profile, session=ASession(threads=8))
    run.is_narrow = is_narrow
    now_ns = time.monotonic_ns()
    assert long_runs._is_stalled(Step(run, now_ns - 5 * STALLED_NS), now_ns) is not is_narrow
    assert long_runs._is_stalled(Step(run, now_ns - 33 * STALLED_NS), now_ns)


@contextlib.contextmanager
def thread() -> Iterator[tuple[Callable[[float], None], int]]:
    """Yield a thread's number, and what lets it compute for so many seconds of processor time."""
    asked: SimpleQueue[float] = SimpleQueue()
    done: SimpleQueue[None] = SimpleQueue()

    def work() -> None:
        while seconds := asked.get():
            until_s = time.thread_time() + seconds
            while time.thread_time() < until_s:
                pass
            done.put(None)

    def computes_for(seconds: float) -> None:
        asked.put(seconds)
        done.get(timeout=120.0)

    made = threading.Thread(target=work)
    made.start()
    assert made.native_id is not None
    try:
        yield computes_for, made.native_id
    finally:
        asked.put(0.0)
        made.join()
