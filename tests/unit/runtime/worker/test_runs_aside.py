"""What a background worker shows of segments that others do not wait for."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from brisk.runtime.requests.batch import RunsInProgress
from brisk.runtime.worker.long_runs import STALLED_NS, LongRuns
from brisk.runtime.worker.relay import Step
from brisk.scheduling.job import JobState
from brisk.scheduling.job_class import JobClass
from support.runtime.gates import Pair, job, run_of


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
    step = Step(run, time.monotonic_ns() - 2 * STALLED_NS)
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
