"""Lanes of other models wait while a real-time run computes, for a bounded time."""

from __future__ import annotations

import pytest

from brisk.runtime.models.yielding import LONGEST_YIELD_S, Yielding
from brisk.runtime.requests.batch import Run, RunsInProgress
from brisk.scheduling.job_class import JobClass
from brisk.segments.starting import start_lanes
from brisk.segments.table import SegmentTable
from support.runtime.gates import job, run_of
from support.runtime.requests import ASession, a_table

pytestmark = pytest.mark.timing


def _run(table: SegmentTable[str], job_class: JobClass) -> Run:
    return run_of(job(1, job_class), session=ASession(table=table))


class _Time:
    """Virtual: sleeping takes no time but moves the clock; ``ends`` ends the run by then."""

    def __init__(self, ends_s: float) -> None:
        self.now_s = 0.0
        self.ends_s = ends_s
        self.runs = RunsInProgress()

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self.now_s >= self.ends_s:
            self.runs.leading.clear()


def _yielding(ends_s: float) -> tuple[Yielding, _Time]:
    time = _Time(ends_s)
    return Yielding(time.runs, time.clock, time.sleep), time


def test_a_lane_waits_for_the_end_of_a_realtime_run() -> None:
    yielding, time = _yielding(ends_s=0.02)
    time.runs.leading[:] = [_run(a_table(), JobClass.REALTIME)]
    yielding.yield_to_urgent(a_table())
    assert 0.02 <= time.now_s < LONGEST_YIELD_S


def test_no_segment_waits_longer_than_the_bound() -> None:
    yielding, time = _yielding(ends_s=1e9)
    time.runs.leading[:] = [_run(a_table(), JobClass.REALTIME)]
    loading = a_table()
    for segment in range(1, 4):
        yielding.yield_to_urgent(loading)
        assert LONGEST_YIELD_S * segment <= time.now_s <= (LONGEST_YIELD_S + 0.002) * segment


def test_a_run_does_not_wait_for_its_own_segments_nor_anyone_for_a_normal_run() -> None:
    yielding, time = _yielding(ends_s=1e9)
    own = a_table()
    time.runs.leading[:] = [_run(own, JobClass.REALTIME)]
    yielding.yield_to_urgent(own)
    time.runs.leading[:] = [_run(a_table(), JobClass.NORMAL)]
    yielding.yield_to_urgent(own)
    assert time.now_s == 0.0


def test_lanes_ask_before_each_segment_and_a_closed_table_waits_for_nothing() -> None:
    asked: list[int] = []
    table = a_table()
    (lane,) = start_lanes(table, 2, lambda asking: asked.append(asking.loaded))
    lane.join(5.0)
    table.close()
    assert asked == [0, 1, 2, 3]  # once more to find that none is left
    yielding, time = _yielding(ends_s=1e9)
    time.runs.leading[:] = [_run(a_table(), JobClass.REALTIME)]
    yielding.yield_to_urgent(table)
    assert time.now_s == 0.0
