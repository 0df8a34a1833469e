"""The events of this process: spans, while a trace is recorded, and the latest incidents."""

from __future__ import annotations

import threading
import time
from collections import deque

from brisk.protocol.records import Span

MAX_SPANS = 50_000
"""The most spans, some 10 MB; further ones are counted and left out."""


class SpanRecorder:
    """A recorder of spans; any thread may add. ``is_on`` is read without the lock: one span more
    or less does no harm."""

    def __init__(self) -> None:
        self.is_on = False
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self._left_out = 0

    def begin(self) -> None:
        """Discard earlier spans, and start recording."""
        with self._lock:
            self._spans, self._left_out = [], 0
            self.is_on = True

    def add(
        self,
        lane: str,
        name: str,
        begin_ns: int,
        end_ns: int,
        request: str = "",
        details: str = "",
    ) -> None:
        if not self.is_on:
            return
        span = Span(lane, name, begin_ns, end_ns, request, details)
        with self._lock:
            if len(self._spans) < MAX_SPANS:
                self._spans.append(span)
            else:
                self._left_out += 1

    def end(self) -> tuple[list[Span], int]:
        """Stop recording. Return the recorded spans, and how many were left out."""
        with self._lock:
            self.is_on = False
            spans, self._spans = self._spans, []
            return spans, self._left_out


SPANS = SpanRecorder()
"""The recorder of this process's spans."""


KEPT = 100
MAX_CHARACTERS = 300


class Incidents:
    """The newest ``KEPT`` incidents; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[tuple[int, str]] = deque(maxlen=KEPT)

    def note(self, what: str) -> None:
        """Keep the first ``MAX_CHARACTERS`` of an incident."""
        with self._lock:
            self._kept.append((time.monotonic_ns(), what[:MAX_CHARACTERS]))

    def newest(self, count: int) -> list[tuple[int, str]]:
        """Return at most ``count`` incidents as time (CLOCK_MONOTONIC, ns) and text, the newest
        first."""
        with self._lock:
            incidents = list(self._kept)
        return incidents[: -count - 1 : -1] if count > 0 else []


INCIDENTS = Incidents()
"""The incidents of this process."""
