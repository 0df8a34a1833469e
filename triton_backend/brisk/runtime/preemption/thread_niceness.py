"""A worker's computing threads before other processes of the machine, while it serves real-time
models."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Callable

from brisk.os_priority import VARIABLE, process_niceness, set_threads
from brisk.runtime.log import say


class Precedence:
    """Used by the worker's main thread.

    Python's other threads, which load, look after sessions or wait, keep their niceness.
    """

    def __init__(
        self, niceness: int, change: Callable[[int, frozenset[int]], bool] = set_threads
    ) -> None:
        """``niceness`` 0: nothing is ever changed."""
        self._usual = process_niceness()
        self._niceness = niceness
        self._change = change
        self._is_taken = False

    def follow(self, serves_realtime: bool) -> None:
        """Take precedence, or give it up, where that is not so already."""
        if serves_realtime == self._is_taken or not self._niceness:
            return
        self._is_taken = serves_realtime
        others = threading.enumerate()
        spared = frozenset(
            thread.native_id
            for thread in others
            if thread is not threading.main_thread() and thread.native_id is not None
        )
        if not self._change(self._niceness if serves_realtime else self._usual, spared):
            say(
                f"niceness {self._niceness} is refused: real-time requests share processors with "
                f"other processes as equals; CAP_SYS_NICE allows it, {VARIABLE}=0 asks for none"
            )
            self._niceness = 0


# How long a thread's turns on a processor are, which decides how soon it gets one.
#
# The kernel (from 6.12 on) lets a thread that has just got a processor keep it for its slice,
# about 1.4 to 3 ms, before one that wakes up may take it, whatever the niceness of both; and
# looks again with the next tick, up to 4 ms later. Who asks for shorter turns than the one that
# runs need not wait. It is no more of the processor that way, only sooner.

SLICE_NS = 300_000

_SCHED_SETATTR = 314
"""The system call's number on x86-64; the C library has no function for it."""

_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""size, policy, flags, niceness, priority, runtime (here: the slice), deadline, period."""


def shorten_slices() -> bool:
    """Have the calling thread, and those that it starts from now on, take short turns.

    Whether the system call exists and is allowed; kernels before 6.12 take no notice.
    """
    policy = os.sched_getscheduler(0)
    if policy not in (os.SCHED_OTHER, os.SCHED_BATCH):
        return False
    data = _ATTRIBUTES.pack(_ATTRIBUTES.size, policy, 0, process_niceness(), 0, SLICE_NS, 0, 0)
    return ctypes.CDLL(None).syscall(_SCHED_SETATTR, 0, data, 0) == 0
