"""A lane that does not come back costs a request time, not its answer."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from brisk.errors import InternalError
from brisk.segments import table as tables
from brisk.segments.starting import start_lanes
from brisk.segments.table import EXECUTOR, SegmentTable

PATIENCE_S = 20.0


class _Loads:
    """Segments are who loaded them. Lanes hang at segment 1 until they are let go."""

    def __init__(self) -> None:
        self.hangs, self.let_go = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def load(self, index: int) -> Any:
        is_executor = threading.current_thread() is threading.main_thread()
        if index == 1 and not is_executor:
            self.hangs.set()
            assert self.let_go.wait(PATIENCE_S)
            if self.error is not None:
                raise self.error
        return EXECUTOR if is_executor else "lane"


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> _Loads:
    monkeypatch.setattr(tables, "RESCUE_S", 0.05)
    return _Loads()


@pytest.mark.parametrize("error", [None, OSError("the disk is gone")])
def test_the_executor_loads_what_a_hung_lane_holds_and_the_lane_s_own_comes_too_late(
    loads: _Loads, error: Exception | None
) -> None:
    loads.error = error
    table = SegmentTable(4, loads.load)
    lanes = start_lanes(table, 3)
    assert loads.hangs.wait(PATIENCE_S)
    assert table[1] == EXECUTOR
    assert table.wait(PATIENCE_S)
    loads.let_go.set()
    for lane in lanes:
        lane.join(PATIENCE_S)
    assert table[1] == EXECUTOR
    assert table.is_whole
    assert table.loaded == 4


def test_a_rescue_that_fails_is_told_to_who_needs_the_segment(loads: _Loads) -> None:
    def load(index: int) -> Any:
        if threading.current_thread() is threading.main_thread():
            raise InternalError("not here either")
        return loads.load(index)

    table = SegmentTable(2, load)
    lanes = start_lanes(table, 2)
    assert loads.hangs.wait(PATIENCE_S)
    with pytest.raises(InternalError, match="not here either"):
        table[1]
    loads.let_go.set()
    for lane in lanes:
        lane.join(PATIENCE_S)
    assert not table.is_whole
