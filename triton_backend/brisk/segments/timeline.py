"""The timeline of a cold start: its stages, each with the thread that it ran in."""

from __future__ import annotations

import time
from enum import Enum
from typing import NamedTuple

clock_ns = time.perf_counter_ns


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
    """Collects events from any thread; appending to a list needs no lock."""

    def __init__(self) -> None:
        self._events: list[TimelineEvent] = []

    def add(self, lane: str, kind: EventKind, segment: int | None, start_ns: int) -> None:
        """Record a stage that ends now."""
        self._events.append(TimelineEvent(lane, kind, segment, start_ns, clock_ns()))

    def events(self) -> list[TimelineEvent]:
        """Return the events, sorted by their start."""
        return sorted(self._events.copy(), key=lambda event: event.start_ns)
