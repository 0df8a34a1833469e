"""Tables whose segments are opened as their bytes arrive: nobody waits for more than they need."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from brisk.errors import UnavailableError
from brisk.segments import table as module
from brisk.segments.starting import start_lanes
from brisk.segments.table import RETRY_S, SegmentTable

WAIT_S = 30.0


class Bytes:
    """Which segments' bytes are here, and who waits for them."""

    def __init__(self, *here: int) -> None:
        self.here = set(here)
        self.changed = threading.Condition()
        self.begun: list[int] = []

    def arrive(self, index: int) -> None:
        with self.changed:
            self.here.add(index)
            self.changed.notify_all()

    def is_here(self, index: int) -> bool:
        return index in self.here

    def load(self, index: int) -> Any:
        with self.changed:
            self.begun.append(index)
            assert self.changed.wait_for(lambda: index in self.here, WAIT_S)
        return index


def test_an_executor_that_waits_takes_no_segment_whose_bytes_are_not_here() -> None:
    """A lane is at segment 0, whose bytes come last but one; nobody is to begin segment 1, whose
    bytes never come, since the executor could not come back from it."""
    arriving = Bytes(2)
    made = SegmentTable(3, arriving.load, arriving.is_here)
    lane = threading.Thread(target=lambda: made._perform(made._claim(0) or 0, "load-1"))
    lane.start()
    while not arriving.begun:
        pass
    threading.Timer(0.2, arriving.arrive, [0]).start()
    assert made[0] == 0
    lane.join(WAIT_S)
    assert arriving.begun == [0]
    assert not made.is_whole


def test_a_rescue_waits_for_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane that waits for bytes is not one that hangs: nobody loads the segment again."""
    monkeypatch.setattr(module, "RESCUE_S", 0.05)
    arriving = Bytes()
    made = SegmentTable(1, arriving.load, arriving.is_here)
    lane = threading.Thread(target=lambda: made._perform(made._claim(0) or 0, "load-1"))
    lane.start()
    while not arriving.begun:
        pass
    threading.Timer(0.3, arriving.arrive, [0]).start()
    assert made[0] == 0
    lane.join(WAIT_S)
    assert arriving.begun == [0]


def test_a_segment_that_could_not_be_had_is_asked_for_again() -> None:
    """No source answers for a while: requests of that time fail, the model does not."""
    problems = [UnavailableError("the registry does not answer")]

    def load(index: int) -> Any:
        if problems:
            raise problems.pop()
        return index

    made = SegmentTable(1, load)
    with pytest.raises(UnavailableError, match="the registry does not answer"):
        made[0]
    assert not made.is_whole
    assert made[0] == 0
    assert made.is_whole


def test_a_lane_goes_on_with_what_could_not_be_had_at_first() -> None:
    problems = [UnavailableError("gone"), UnavailableError("gone")]

    def load(index: int) -> Any:
        if index == 1 and problems:
            raise problems.pop()
        return index

    made = SegmentTable(3, load)
    made.work("load-1")
    assert [made[index] for index in range(3)] == [0, 1, 2]
    assert not problems


def test_lanes_rest_before_they_try_again_what_could_not_be_had() -> None:
    """Two of them, each of which would wake the other as it gives its segment up."""
    tries: list[int] = []
    until_s = time.monotonic() + 5 * RETRY_S

    def load(index: int) -> Any:
        tries.append(index)
        if time.monotonic() < until_s:
            raise UnavailableError("its file is still arriving")
        return index

    made = SegmentTable(2, load)
    lanes = start_lanes(made, 3)
    assert made.wait(WAIT_S)
    for lane in lanes:
        lane.join(WAIT_S)
    assert made.is_whole
    assert len(tries) <= 2 * 6 + 2
