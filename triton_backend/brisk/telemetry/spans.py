"""What this process did when, and for which request: recorded only while somebody asks for it."""

from __future__ import annotations

import threading
from dataclasses import dataclass

MAX_SPANS = 50_000
"""Some 10 MB; what comes after is counted and left out."""


@dataclass(frozen=True, slots=True)
class Span:
    """``lane``: the thread or queue it lay in. Times are CLOCK_MONOTONIC.

    ``request`` names the request or load it belongs to, the same in all processes. ``details``:
    whatever else is worth reading, Triton's trace context for instance.
    """

    lane: str
    name: str
    begin_ns: int
    end_ns: int
    request: str
    details: str


class SpanRecorder:
    """Any thread may add. ``is_on`` is read without the lock: a span more or less is no harm."""

    def __init__(self) -> None:
        self.is_on = False
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self._left_out = 0

    def begin(self) -> None:
        """Forget what was recorded and record from now on."""
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
        """Where nothing is recorded, do nothing."""
        if not self.is_on:
            return
        span = Span(lane, name, begin_ns, end_ns, request, details)
        with self._lock:
            if len(self._spans) < MAX_SPANS:
                self._spans.append(span)
            else:
                self._left_out += 1

    def end(self) -> tuple[list[Span], int]:
        """Record no more; what was recorded, and how many more spans there would have been."""
        with self._lock:
            self.is_on = False
            spans, self._spans = self._spans, []
            return spans, self._left_out


SPANS = SpanRecorder()
"""This process's own."""
