"""Work in a thread that runs only on what processors others leave."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from brisk.runtime.saying import say

LOWEST_NICENESS = 19

_TELLING = threading.Lock()
"""Held by whoever has told that SCHED_IDLE is refused, for good: so it is told once."""

_Result = TypeVar("_Result")


class _Work(Generic[_Result]):
    """``outcome`` is empty until the work has ended without an exception."""

    def __init__(self, call: Callable[[], _Result]) -> None:
        self._call = call
        self.outcome: list[_Result] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        _yield_processors()
        try:
            self.outcome.append(self._call())
        except BaseException as error:  # noqa: BLE001  # the caller's thread raises it
            self.error = error


def standing_back(call: Callable[[], _Result]) -> _Result:
    """Run ``call`` in a thread of its own under SCHED_IDLE; return or raise what it does.

    Threads that it starts inherit the policy. A new thread each time, because one that has gone
    under SCHED_IDLE needs a privilege to come back. Where SCHED_IDLE is refused, the lowest
    niceness takes its place.
    """
    work = _Work(call)
    thread = threading.Thread(target=work.run, name="brisk-standing-back", daemon=True)
    thread.start()
    thread.join()
    if work.error is not None:
        raise work.error
    return work.outcome[0]


def _yield_processors() -> None:
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError as error:
        if _TELLING.acquire(blocking=False):
            say(
                f"SCHED_IDLE is refused ({error}): loads beside real-time models run at niceness "
                f"{LOWEST_NICENESS}; `brisk doctor` tells what allows it"
            )
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_NICENESS)
