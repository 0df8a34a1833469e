"""Tables of loading segments: each is loaded once, by the first to get there, and none is lost."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brisk.errors import InternalError, InvalidModelError, UnavailableError
from brisk.segments.table import SegmentTable
from brisk.segments.timeline import GOES_ON_NS, EventKind, Recorder, clock_ns

WAIT_S = 30.0


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def by_executor() -> bool:
    return threading.current_thread() is threading.main_thread()


def lanes_of(table: SegmentTable) -> list[tuple[str, int | None]]:
    """Who loaded what, in that order."""
    events = table.recorder.events()
    return [(event.lane, event.segment) for event in events if event.kind is EventKind.CREATE]


def test_the_executor_loads_what_nobody_has_begun() -> None:
    made = SegmentTable(3, lambda index: index)
    assert made[1] == 1
    assert [made[0], made[2]] == [0, 2]
    assert lanes_of(made) == [("issue", 1), ("issue", 0), ("issue", 2)]
    assert made.is_whole


def test_a_lane_loads_in_order_what_nobody_has_begun() -> None:
    made = SegmentTable(4, lambda index: index)
    assert made[1] == 1
    made.work("load-1")
    assert [made[index] for index in range(4)] == [0, 1, 2, 3]
    assert lanes_of(made) == [("issue", 1), ("load-1", 0), ("load-1", 2), ("load-1", 3)]


def test_an_executor_that_waits_for_a_slow_lane_loads_the_next_segments_meanwhile() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def load(index: int) -> Any:
        if index == 0:
            begun.set()
            assert may_end.wait(WAIT_S)
        elif index == 2:
            may_end.set()  # the executor came this far while segment 0 was in work
        return index, by_executor()

    made = SegmentTable(3, load)
    lane = in_thread(lambda: made.work("load-0"))
    assert begun.wait(WAIT_S)
    assert made[0] == (0, False)
    assert [made[1], made[2]] == [(1, True), (2, True)]
    lane.join(WAIT_S)


def test_a_long_wait_for_a_lane_is_one_event() -> None:
    """Else each second of waiting would keep a thousand in memory."""
    begun, may_end = threading.Event(), threading.Event()

    def load(index: int) -> Any:
        begun.set()
        assert may_end.wait(WAIT_S)
        return index

    made = SegmentTable(1, load)
    lane = in_thread(lambda: made.work("load-0"))
    assert begun.wait(WAIT_S)
    threading.Timer(0.3, may_end.set).start()
    assert made[0] == 0
    lane.join(WAIT_S)
    waits = [each for each in made.recorder.events() if each.kind is EventKind.WAIT]
    assert len(waits) < 30, "a machine that is busy interrupts it now and then"
    assert sum(each.end_ns - each.start_ns for each in waits) > 200_000_000


def test_the_same_stage_at_another_time_is_another_event() -> None:
    recorder = Recorder()
    for _ in range(2):
        recorder.add("issue", EventKind.WAIT, 3, clock_ns())
        time.sleep(2 * GOES_ON_NS / 1e9)
    recorder.add("issue", EventKind.WAIT, 4, clock_ns())
    assert [each.segment for each in recorder.events()] == [3, 3, 4]


def test_the_end_of_loading_is_told_before_anybody_has_the_last_segment() -> None:
    begun, told = threading.Event(), []

    def tell() -> None:
        threading.Event().wait(0.05)  # long enough for an executor that does not wait for it
        told.append(made.loaded)

    def load(index: int) -> Any:
        begun.set()
        return index

    made = SegmentTable(1, load)
    made.when_loaded(tell)
    lane = in_thread(lambda: made.work("load-0"))
    assert begun.wait(WAIT_S)
    assert made[0] == 0
    assert told == [1]
    lane.join(WAIT_S)
    made.when_loaded(tell)
    assert told == [1, 1]


def test_a_failed_segment_raises_for_everybody_who_needs_it_and_spares_the_others() -> None:
    def load(index: int) -> Any:
        if index == 1:
            raise InvalidModelError("segment one is bad")
        if index == 2:
            raise ZeroDivisionError("two")
        return index

    made = SegmentTable(4, load)
    made.work("load-0")
    assert made.wait(WAIT_S)
    for _ in range(2):
        with pytest.raises(InvalidModelError, match="segment one is bad"):
            made[1]
        with pytest.raises(InternalError, match="segment 2: ZeroDivisionError: two"):
            made[2]
    assert (made[0], made[3]) == (0, 3)
    assert not made.is_whole
    assert list(made.current()) == [0, None, None, 3]


def test_requests_of_a_failed_segment_leave_nothing_behind() -> None:
    class Request:
        pass

    def load(index: int) -> Any:
        raise InvalidModelError("segment zero is bad")

    made, requests = SegmentTable(1, load), []
    made.work("load-0")

    def run() -> None:
        request = Request()
        requests.append(weakref.ref(request))
        made[0]

    for _ in range(3):
        with pytest.raises(InvalidModelError, match="segment zero is bad"):
            run()
    gc.collect()
    assert [each() for each in requests] == [None, None, None]


def test_a_closed_table_begins_nothing_but_what_an_executor_needs() -> None:
    made = SegmentTable(3, lambda index: index)
    made.close()
    made.work("load-0")
    assert not made.is_loading
    assert made[2] == 2
    assert lanes_of(made) == [("issue", 2)]


def test_frames_take_a_switch_whole_or_not_at_all() -> None:
    made = SegmentTable(2, lambda index: f"cold {index}")
    with pytest.raises(InternalError, match="before they are loaded"):
        made.switch({0: "warm"})
    before = made.current()
    assert list(before) == [None, None]
    assert [made[0], made[1]] == ["cold 0", "cold 1"]
    made.switch({1: "warm 1"})
    assert list(before) == ["cold 0", "cold 1"]
    assert list(made.current()) == ["cold 0", "warm 1"]


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 12),
    lanes=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_every_interleaving_loads_each_segment_once(count: int, lanes: int, seed: int) -> None:
    chance = random.Random(seed)
    pauses = [chance.choice((0.0, 0.0, 0.0005, 0.002)) for _ in range(count)]
    loads: list[int] = []
    pause = threading.Event()

    def load(index: int) -> Any:
        loads.append(index)
        pause.wait(pauses[index])
        return index

    made = SegmentTable(count, load)
    threads = [in_thread(lambda lane=lane: made.work(f"load-{lane}")) for lane in range(lanes)]
    assert [made[index] for index in range(count)] == list(range(count))
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(loads) == list(range(count))
    assert made.is_whole


@pytest.mark.parametrize(
    "shortage", [MemoryError(), RuntimeError("std::bad_alloc"), OSError(24, "Too many open files")]
)
def test_what_memory_was_short_for_is_loaded_by_a_later_request(shortage: Exception) -> None:
    problems: list[Exception] = []

    def load(index: int) -> Any:
        if problems:
            raise InvalidModelError("ONNX Runtime cannot load it") from problems.pop()
        return index

    made = SegmentTable(3, load)
    problems.append(shortage)
    assert made.is_left_to_lanes
    made.work("load-0")  # and ends, without trying again and again
    assert made.loaded == 0
    assert not made.is_left_to_lanes
    problems.append(shortage)
    with pytest.raises(UnavailableError, match=r"segment 1: .*; to be tried again"):
        made[1]
    assert [made[1], made[0], made[2]] == [1, 0, 2]
    assert made.is_whole


def test_lanes_go_on_beside_one_that_found_memory_short() -> None:
    made = SegmentTable(2, lambda index: index)
    made.is_short = True
    assert not made.is_left_to_lanes
    made.work("load-1")
    assert made.is_whole


def test_an_executor_awaits_loads_while_lanes_work_or_while_it_loads_itself() -> None:
    awaited: list[bool] = []
    problems: list[Exception] = [MemoryError()]

    def load(index: int) -> int:
        awaited.append(made.holds_executors)
        if problems:
            raise problems.pop()
        return index

    made = SegmentTable(2, load)
    assert made.holds_executors
    made.work("load-0")
    assert not made.holds_executors
    assert made[0] == 0
    assert awaited == [True, True]
    assert not made.holds_executors
    assert made.is_loading


@pytest.mark.parametrize("is_late", [False, True])
def test_who_waits_is_told_that_the_rest_is_left_to_executors(is_late: bool) -> None:
    told: list[int] = []
    problems: list[Exception] = [MemoryError()]

    def load(index: int) -> Any:
        if problems:
            raise problems.pop()
        return index

    def tell() -> None:
        told.append(made.loaded)

    made = SegmentTable(2, load)
    if not is_late:
        made.when_left(tell)
        assert not told
    made.lanes_at_work += 1  # another lane
    made.work("load-0")
    assert not made.is_left_to_executors
    made.lanes_at_work -= 1
    problems.append(MemoryError())
    made.work("load-1")
    if is_late:
        made.when_left(tell)
    assert made.is_left_to_executors
    assert told == [0]
    assert list(made) == [0, 1]
    assert not made.is_left_to_executors
    assert told == [0]
