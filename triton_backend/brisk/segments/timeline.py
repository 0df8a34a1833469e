"""The timeline of a cold start: its stages, each with the thread that it ran in."""

from __future__ import annotations

import time
from enum import Enum
from typing import NamedTuple

clock_ns = time.perf_counter_ns

GOES_ON_NS = 1_000_000
"""The time behind a stage within which the same one goes on."""


class EventKind(str, Enum):
    """The stages of a start."""

    PARSE = "parse"
    CREATE = "create"
    WAIT = "wait"
    """An executor waits for a segment that is not there yet."""


class TimelineEvent(NamedTuple):
    """One stage of a start; ``lane``: the thread. Times are of ``clock_ns``."""

    lane: str
    kind: EventKind
    segment: int | None
    """The segment's index; None if the stage is the whole model's."""
    start_ns: int
    end_ns: int


class Recorder:
    """Collects events from any thread; appending to a list needs no lock, nor does replacing an
    element."""

    def __init__(self) -> None:
        self._events: list[TimelineEvent] = []

    def add(self, lane: str, kind: EventKind, segment: int | None, start_ns: int) -> None:
        """Record a stage that ends now; if it goes on from the last event, as part of that: an
        executor that waits looks again each millisecond."""
        event = TimelineEvent(lane, kind, segment, start_ns, clock_ns())
        place = len(self._events) - 1
        if place >= 0:
            last = self._events[place]
            if last[:3] == event[:3] and start_ns - last.end_ns < GOES_ON_NS:
                self._events[place] = last._replace(end_ns=event.end_ns)
                return
        self._events.append(event)

    def events(self) -> list[TimelineEvent]:
        """Return the events, sorted by their start."""
        return sorted(self._events.copy(), key=lambda event: event.start_ns)
