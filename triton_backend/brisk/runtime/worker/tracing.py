"""Spans of the worker, called while somebody asks for them: requests, their runs and layers,
loads.

A run that begins while spans are recorded has its frame wrapped; all others pay nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from brisk.runtime.models.session import Frame
from brisk.telemetry.events import SPANS

if TYPE_CHECKING:
    from brisk.runtime.worker.batch import Request

FRONTEND = "frontend"
"""From when Triton handed a request to its stub to when the worker had it."""

QUEUE = "queue"
LAYERS = "layers"
REQUESTS = "requests"
LOADS = "load lane"


class TracedFrame:
    """A frame whose every step is a span; everything else is the frame's own."""

    def __init__(self, frame: Frame, request: str, details: str) -> None:
        self._frame = frame
        self._request = request
        self._details = details

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frame, name)

    def step(self) -> bool:
        name = self._frame.upcoming
        begin_ns = time.monotonic_ns()
        is_finished = self._frame.step()
        SPANS.add(LAYERS, name, begin_ns, time.monotonic_ns(), self._request, self._details)
        return is_finished


def trace_run(jobs: Sequence[Request], frame: Frame, started_ns: int) -> Frame:
    """``frame``, wrapped; notes how long its jobs have waited."""
    requests, contexts = [], []
    for job in jobs:
        name, context = _names(job)
        requests.append(name)
        contexts.append(context)
        job_class, arrived_ns = job.job_class.value, job.record.arrived_ns
        SPANS.add(QUEUE, f"waits, {job_class}", job.arrival_ns, started_ns, name, context)
        if arrived_ns > 0:
            way = f"to the worker, {job_class}"
            SPANS.add(FRONTEND, way, arrived_ns, job.arrival_ns, name, context)
    details = " ".join(filter(None, contexts))
    return cast(Frame, TracedFrame(frame, ", ".join(requests), details))


def trace_answer(job: Request, answered_ns: int) -> None:
    """A request was answered, well or not, just after ``answered_ns``."""
    name, context = _names(job)
    model = job.binding.model
    text = f"{model.name} {model.version}, {job.job_class.value}"
    SPANS.add(REQUESTS, text, job.arrival_ns, answered_ns, name, context)


def _names(job: Request) -> tuple[str, str]:
    """What the request is called in the stub, too, and its trace context."""
    peer, record = job.peer, job.record
    return f"request {record.request} of process {peer.pid}", record.trace_context
