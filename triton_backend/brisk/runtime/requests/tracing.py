"""Spans of runs and their segments, recorded while a trace is requested.

A run that begins while spans are recorded has its frame wrapped; other runs have no overhead.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from brisk.runtime.requests.table import Request
from brisk.runtime.sessions.session import Frame
from brisk.segments.values import Value
from brisk.telemetry.events import SPANS

if TYPE_CHECKING:
    from brisk.exits.serving.frame import ExitingFrame

FRONTEND = "frontend"
"""The trace's lane of requests between Triton's hand-over to their stub and the worker."""

QUEUE = "queue"
SEGMENTS = "layers"
"""The trace's lane of computed segments. Trace files have used this name from the beginning."""


class TracedFrame:
    """A frame that records a span for each of its steps."""

    def __init__(self, frame: Frame, request: str, details: str) -> None:
        self._frame = frame
        self._request = request
        self._details = details

    @property
    def early(self) -> ExitingFrame | None:
        return self._frame.early

    @property
    def position(self) -> int:
        return self._frame.position

    @property
    def upcoming(self) -> str:
        return self._frame.upcoming

    @property
    def is_finished(self) -> bool:
        return self._frame.is_finished

    def step(self) -> bool:
        name = self._frame.upcoming
        begin_ns = time.monotonic_ns()
        is_finished = self._frame.step()
        SPANS.add(SEGMENTS, name, begin_ns, time.monotonic_ns(), self._request, self._details)
        return is_finished

    def results(self) -> dict[str, Value]:
        return self._frame.results()


def trace_run(jobs: Sequence[Request], frame: Frame, started_ns: int) -> Frame:
    """Return ``frame``, wrapped. Note how long its jobs have waited."""
    for job in jobs:
        name, context = job.label, job.record.trace_context
        job_class, arrived_ns = job.job_class.value, job.record.arrived_ns
        SPANS.add(QUEUE, f"waits, {job_class}", job.arrival_ns, started_ns, name, context)
        if arrived_ns > 0:
            way = f"to the worker, {job_class}"
            SPANS.add(FRONTEND, way, arrived_ns, job.arrival_ns, name, context)
    names = ", ".join(job.label for job in jobs)
    details = " ".join(job.record.trace_context for job in jobs if job.record.trace_context)
    return TracedFrame(frame, names, details)
