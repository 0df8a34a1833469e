"""What happened when, and in which lane: the record of a cold start."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum

clock_ns = time.perf_counter_ns


class EventKind(str, Enum):
    """The stages of a start; ``WAIT``: of whoever runs a part that is not there yet."""

    PARSE = "parse"
    CREATE = "create"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """``stolen``: done by this lane in place of the one whose work it was."""

    lane: str
    kind: EventKind
    layer: int | None
    start_ns: int
    end_ns: int
    stolen: bool = False


@dataclass(frozen=True, slots=True)
class Timeline:
    """Events by their start; times are ``time.perf_counter_ns``."""

    started_ns: int
    answered_ns: int
    events: tuple[TimelineEvent, ...]

    def total_ns(self, kind: EventKind) -> int:
        """Time spent in stages of a kind until the first answer, over all lanes."""
        return sum(
            min(event.end_ns, self.answered_ns) - event.start_ns
            for event in self.events
            if event.kind is kind and event.start_ns < self.answered_ns
        )


class Recorder:
    """Collects events from any thread; appending to a list needs no lock."""

    def __init__(self) -> None:
        self.started_ns = clock_ns()
        self._events: list[tuple[str, EventKind, int | None, int, int, bool]] = []

    def add(
        self,
        lane: str,
        kind: EventKind,
        layer: int | None,
        start_ns: int,
        stolen: bool = False,
    ) -> int:
        """Record a stage that ends now; returns now, which the next may start from."""
        end_ns = clock_ns()
        self._events.append((lane, kind, layer, start_ns, end_ns, stolen))
        return end_ns

    def timeline(self, answered_ns: int) -> Timeline:
        events = (TimelineEvent(*event) for event in self._events.copy())
        ordered = sorted(events, key=lambda event: event.start_ns)
        return Timeline(self.started_ns, answered_ns, tuple(ordered))
