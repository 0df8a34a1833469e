"""Lanes of other models wait while a real-time run computes, for a bounded time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from brisk.runtime.models.kinds.segment_session import SegmentSession
from brisk.runtime.models.loader import LONGEST_S, Courtesy
from brisk.scheduling.job import JobClass
from brisk.segments.starting import Lanes
from brisk.segments.table import LayerTable

pytestmark = pytest.mark.timing


def _table(count: int = 3) -> LayerTable:
    layer: Any = object()
    return LayerTable(count, lambda index, lane, stolen: layer, [list(range(count))])


def _run(table: LayerTable, job_class: JobClass) -> Any:
    session = SegmentSession.__new__(SegmentSession)
    session.table = table
    job = SimpleNamespace(payload=SimpleNamespace(binding=SimpleNamespace(session=session)))
    return SimpleNamespace(job_class=job_class, jobs=[job])


class _Time:
    """Virtual: sleeping takes no time but moves the clock; ``ends`` ends the run by then."""

    def __init__(self, courtesy_ends_s: float) -> None:
        self.now_s = 0.0
        self.ends_s = courtesy_ends_s
        self.courtesy: Courtesy | None = None

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self.courtesy is not None and self.now_s >= self.ends_s:
            self.courtesy.attend([])


def _courteous(ends_s: float) -> tuple[Courtesy, _Time]:
    time = _Time(ends_s)
    time.courtesy = Courtesy(time.clock, time.sleep)
    return time.courtesy, time


def test_a_lane_waits_for_the_end_of_a_realtime_run() -> None:
    courtesy, time = _courteous(ends_s=0.02)
    courtesy.attend([_run(_table(), JobClass.REALTIME)])
    courtesy.give_way(_table())
    assert 0.02 <= time.now_s < LONGEST_S


def test_no_layer_waits_longer_than_the_bound() -> None:
    courtesy, time = _courteous(ends_s=1e9)
    courtesy.attend([_run(_table(), JobClass.REALTIME)])
    loading = _table()
    for layer in range(1, 4):
        courtesy.give_way(loading)
        assert LONGEST_S * layer <= time.now_s <= (LONGEST_S + 0.002) * layer


def test_a_run_does_not_wait_for_its_own_layers_nor_anyone_for_a_normal_run() -> None:
    courtesy, time = _courteous(ends_s=1e9)
    own = _table()
    courtesy.attend([_run(own, JobClass.REALTIME)])
    courtesy.give_way(own)
    courtesy.attend([_run(_table(), JobClass.NORMAL)])
    courtesy.give_way(own)
    assert time.now_s == 0.0


def test_lanes_ask_before_each_layer_and_a_closed_table_waits_for_nothing() -> None:
    asked: list[int] = []
    table = _table()
    lanes = Lanes(table, 1, lambda asking: asked.append(asking.loaded))
    assert table.wait(5.0)
    lanes.close()
    assert asked == [0, 1, 2, 3]  # once more to find that none is left
    courtesy, time = _courteous(ends_s=1e9)
    courtesy.attend([_run(_table(), JobClass.REALTIME)])
    courtesy.give_way(table)
    assert time.now_s == 0.0
