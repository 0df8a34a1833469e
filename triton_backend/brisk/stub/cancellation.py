"""Notices clients that have gone: Triton tells only who asks, and asking costs a round trip."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from brisk.stub.response import TritonReply

POLL_INTERVAL_S = 0.05
MINIMUM_AGE_NS = 50_000_000
"""Requests answered sooner than this are never asked about."""


class CancellationWatcher:
    """A thread that asks about every request in flight, and sleeps while there is none."""

    def __init__(self, cancel: Callable[[int], None]) -> None:
        self._cancel = cancel
        self._watched: dict[int, TritonReply] = {}
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="brisk-watcher", daemon=True)
        self._thread.start()

    def watch(self, number: int, reply: TritonReply) -> None:
        """Watch request ``number`` until it is answered."""
        with self._lock:
            self._watched[number] = reply
        if not self._wanted.is_set():
            self._wanted.set()

    def close(self) -> None:
        self._closing.set()
        self._wanted.set()
        self._thread.join(timeout=5.0)

    def _watch(self) -> None:
        while self._wanted.wait() and not self._closing.wait(POLL_INTERVAL_S):
            for number, reply in self._due():
                if reply.is_cancelled():
                    self._cancel(number)
                    with self._lock:
                        self._watched.pop(number, None)

    def _due(self) -> list[tuple[int, TritonReply]]:
        """Requests old enough to ask about; forgets the answered ones."""
        before_ns = time.monotonic_ns() - MINIMUM_AGE_NS
        with self._lock:
            self._watched = {
                number: reply for number, reply in self._watched.items() if not reply.is_answered
            }
            if not self._watched:
                self._wanted.clear()
            return [
                (number, reply)
                for number, reply in self._watched.items()
                if reply.created_ns < before_ns
            ]
