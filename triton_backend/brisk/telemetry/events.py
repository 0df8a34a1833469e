"""The events of this process: spans, while a trace is recorded, and the latest incidents."""

from __future__ import annotations

import re
import threading
import time

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


_VALUE = re.compile(r"(?<=[:,] )\d+|(?<=[\[({,])\d+")
"""A number in an error's text that is the value of something, no part of a name."""


class Incidents:
    """The newest ``KEPT`` incidents; those that differ in values alone, as the errors of one bad
    client, are one. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[int, str, int]] = {}
        """The time and text of the last one of each kind, and how many there were, the newest
        last."""

    def note(self, what: str) -> None:
        """Keep the first ``MAX_CHARACTERS`` of an incident."""
        text = what[:MAX_CHARACTERS]
        kind = _VALUE.sub("#", text)
        with self._lock:
            _, _, before = self._kept.pop(kind, (0, "", 0))
            self._kept[kind] = time.monotonic_ns(), text, before + 1
            if len(self._kept) > KEPT:
                del self._kept[next(iter(self._kept))]

    def newest(self, count: int) -> list[tuple[int, str]]:
        """Return at most ``count`` incidents as time (CLOCK_MONOTONIC, ns) and text, the newest
        first. Of several that are one it is the last, with how many there were."""
        with self._lock:
            kept = list(self._kept.values())
        return [
            (at_ns, text if times == 1 else f"{times} times, the last: {text}")
            for at_ns, text, times in (kept[: -count - 1 : -1] if count > 0 else [])
        ]


INCIDENTS = Incidents()
"""The incidents of this process."""
