"""A thread of another process sleeps until real-time work comes."""

from __future__ import annotations

import threading
import time

import pytest

from brisk.protocol.gate_page import GateView
from brisk.runtime.preemption.gate import Gate
from support.waiting import wait_until

LONG_S = 60.0


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def view(gate: Gate) -> GateView:
    view = GateView(gate.descriptor)
    if not view.can_wait:
        pytest.skip("this system has no futex that a read-only page can be waited for on")
    return view


def test_a_view_shows_whether_there_is_real_time_work(gate: Gate, view: GateView) -> None:
    assert view.is_open
    gate.close(2, None)
    assert not view.is_open
    assert view.words[0] == 2
    gate.open()
    assert view.is_open
    with pytest.raises(TypeError):
        view.words[0] = 1


def test_who_waits_wakes_when_real_time_work_comes(gate: Gate, view: GateView) -> None:
    woken = threading.Event()

    def wait() -> None:
        while view.is_open:
            view.wait_while_open(LONG_S)
        woken.set()

    begun_s = time.monotonic()
    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    time.sleep(0.1)  # so that it sleeps, in most cases
    gate.close(1, None)
    wait_until(woken.is_set, "its end")
    waiting.join()
    assert time.monotonic() - begun_s < LONG_S


def test_who_comes_late_does_not_sleep(gate: Gate, view: GateView) -> None:
    gate.close(1, None)
    begun_s = time.monotonic()
    view.wait_while_open(LONG_S)
    assert time.monotonic() - begun_s < LONG_S


def test_a_wait_ends_without_real_time_work_too(view: GateView) -> None:
    begun_s = time.monotonic()
    view.wait_while_open(0.05)
    assert view.is_open
    assert time.monotonic() - begun_s < LONG_S
