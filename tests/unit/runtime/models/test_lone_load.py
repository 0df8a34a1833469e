"""A load that has ended a worker waits until nothing runs, but not for ever."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from brisk.runtime.models.yielding import LONGEST_ALONE_S, LoneLoad
from brisk.runtime.requests.batch import RunsInProgress
from brisk.segments.table import SegmentTable
from support.runtime.gates import LAZY


def _entering(lone: LoneLoad) -> threading.Thread:
    thread = threading.Thread(target=lone.enter)
    thread.start()
    while not lone.is_wanted:
        pass
    return thread


def test_it_begins_when_it_is_granted_and_runs_begin_again_when_it_has_left() -> None:
    woken: list[None] = []
    lone = LoneLoad(lambda: woken.append(None), RunsInProgress())
    assert not lone.is_wanted
    thread = _entering(lone)
    lone.holds_runs()
    thread.join(10)
    assert not thread.is_alive()
    assert lone.is_wanted
    before = len(woken)
    lone.leave()
    assert not lone.is_wanted
    assert len(woken) == before + 1


def test_the_worker_that_asks_grants_it_once_nothing_runs() -> None:
    runs = RunsInProgress([LAZY])
    lone = LoneLoad(lambda: None, runs)
    assert not lone.is_used
    assert not lone.holds_runs()
    thread = _entering(lone)
    assert lone.is_used
    assert lone.holds_runs()
    thread.join(0.05)
    assert thread.is_alive()
    runs.leading.clear()
    assert lone.holds_runs()
    thread.join(10)
    assert not thread.is_alive()
    assert lone.holds_runs(), "no run begins beside it"
    lone.leave()
    assert not lone.holds_runs()


def test_others_wait_for_it_a_bounded_time() -> None:
    now_s = [0.0]
    lone = LoneLoad(lambda: None, RunsInProgress(), lambda: now_s[0])
    thread = _entering(lone)
    lone.holds_runs()
    thread.join(10)
    now_s[0] = LONGEST_ALONE_S + 1
    assert not lone.is_wanted


def test_each_one_is_granted_anew() -> None:
    lone = LoneLoad(lambda: None, RunsInProgress())
    for _ in range(2):
        thread = _entering(lone)
        thread.join(0.05)
        assert thread.is_alive()
        lone.holds_runs()
        thread.join(10)
        lone.leave()


@pytest.mark.parametrize("is_closed", [False, True], ids=["loaded", "closed"])
def test_the_next_one_waits_for_the_lanes_of_the_one_before(is_closed: bool) -> None:
    """Else the end of the first would be taken for that of the second, which then waited."""
    table = SegmentTable(1, lambda index: "segment")
    lone = LoneLoad(lambda: None, RunsInProgress())
    thread = _entering(lone)
    lone.holds_runs()
    thread.join(10)
    lone.go_on_in(table)
    assert lone.is_wanted
    following = threading.Thread(target=lone.enter)
    following.start()
    lone.holds_runs()
    following.join(0.05)
    assert following.is_alive()
    if is_closed:
        table.close()
    else:
        table.work("lane")
    while following.is_alive():
        lone.holds_runs()
        following.join(0.01)
    assert lone.is_wanted
    lone.leave()
    assert not lone.is_wanted


def test_a_model_that_was_loaded_alone_goes_when_it_is_unloaded() -> None:
    lone = LoneLoad(lambda: None, RunsInProgress())
    thread = _entering(lone)
    lone.holds_runs()
    thread.join(10)
    table = SegmentTable(1, lambda index: "segment")
    lone.go_on_in(table)
    table.work("lane")
    unloaded = weakref.ref(table)
    del table
    gc.collect()
    assert unloaded() is None
    assert not lone.is_wanted
