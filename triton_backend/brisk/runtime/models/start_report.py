"""What a model's start came to, counted once all its parts are loaded; its stages as spans."""

from __future__ import annotations

import time

from brisk.runtime.models.session import Session
from brisk.segments.timeline import EventKind
from brisk.telemetry import count, metrics
from brisk.telemetry.spans import SPANS


def report_start(session: Session, labels: tuple[str, str]) -> None:
    """Once for each session, under the model and version of ``labels``."""
    origin = session.origin
    count(metrics.STARTS, (*labels, origin))
    timeline = session.recorder.timeline(time.perf_counter_ns())
    for kind in EventKind:
        if total_ns := timeline.total_ns(kind):
            count(metrics.START_SECONDS, (*labels, origin, kind.value), total_ns)
    made = [event for event in timeline.events if event.kind is EventKind.CREATE]
    for where, stolen in (("lane", False), ("stolen", True)):
        number = sum(event.stolen is stolen for event in made)
        count(metrics.LOADED_LAYERS, (*labels, origin, where), number)
    # CLOCK_MONOTONIC is what both of Python's clocks read.
    for event in timeline.events:
        name = event.kind.value if event.layer is None else f"{event.kind.value} {event.layer}"
        SPANS.add(event.lane, name, event.start_ns, event.end_ns, str(session.path))
