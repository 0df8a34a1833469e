"""A worker's computing threads before other processes of the machine, while it serves real-time
models."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from brisk.protocol.host.realtime_niceness import VARIABLE, renice
from brisk.runtime.log import say


class Precedence:
    """Used by the worker's main thread.

    Python's other threads, which load, look after sessions or wait, keep their niceness.
    """

    def __init__(
        self, niceness: int, change: Callable[[int, frozenset[int]], bool] = renice
    ) -> None:
        """``niceness`` 0: nothing is ever changed."""
        self._usual = os.getpriority(os.PRIO_PROCESS, 0)
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
