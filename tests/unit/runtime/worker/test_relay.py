"""Threads of which one leads, on a system that has no further thread."""

from __future__ import annotations

import contextlib
import threading
import time

from brisk.runtime.worker.relay import Relay, Step
from support.open_files import no_thread_left
from support.runtime.gates import job, run_of
from support.waiting import wait_until


def test_a_worker_goes_on_without_a_follower_until_there_is_a_thread_for_one() -> None:
    leaders: list[int] = []
    attended: list[Step] = []
    shortage = contextlib.ExitStack()

    def attend(step: Step) -> bool:
        attended.append(step)
        return True

    def compute(until_s: float) -> None:
        step = Step(run_of(job(1)), time.monotonic_ns())
        relay.begin(step)
        wait_until(lambda: bool(attended) or time.monotonic() > until_s, "the step's end")
        relay.finish(step)

    def take_turn() -> bool:
        leaders.append(threading.get_native_id())
        if len(leaders) == 1:
            compute(time.monotonic() + 0.2)
            assert not attended, "there is nobody"
            shortage.close()
        elif len(leaders) == 2:
            compute(time.monotonic() + 20.0)
        else:
            relay.rest(lambda: wait_until(lambda: bool(relay.returned), "the long step's end"))
        return len(leaders) < 4

    relay = Relay(take_turn, attend)
    with shortage:
        shortage.enter_context(no_thread_left())
        relay.lead()
    first, second, *others = leaders
    assert first == second
    assert len(set(others)) == 1
    assert others[0] != first, "another thread leads since the long step"
