"""What a model's start came to, counted once all its layers are loaded; its stages as spans."""

from __future__ import annotations

import time

from brisk.execution.starting import StartingProgram
from brisk.execution.timeline import EventKind
from brisk.runtime.session import Session
from brisk.telemetry import count, metrics
from brisk.telemetry.spans import SPANS


def report_start(session: Session) -> None:
    """Once for each session. ``EventKind.RUN`` is left out: that time is the requests'."""
    starting = session.starting
    origin = _origin(starting)
    count(metrics.STARTS, (origin,))
    timeline = starting.recorder.timeline(time.perf_counter_ns())
    for kind in EventKind:
        if kind is not EventKind.RUN and (total_ns := timeline.total_ns(kind)):
            count(metrics.START_SECONDS, (origin, kind.value), total_ns)
    made = [event for event in timeline.events if event.kind is EventKind.CREATE]
    for where, stolen in (("lane", False), ("stolen", True)):
        count(
            metrics.LOADED_LAYERS, (origin, where), sum(event.stolen is stolen for event in made)
        )
    # CLOCK_MONOTONIC is what both of Python's clocks read.
    for event in timeline.events:
        name = event.kind.value if event.layer is None else f"{event.kind.value} {event.layer}"
        SPANS.add(event.lane, name, event.start_ns, event.end_ns, str(session.path))


def _origin(starting: StartingProgram) -> str:
    return "model" if starting.wants_artefact else "artefact"
