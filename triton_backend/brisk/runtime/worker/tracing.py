"""Spans of the worker, while somebody asks for them: requests, their runs and layers, loads.

A run that begins while spans are recorded has its frame wrapped; all others pay nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from brisk.protocol.records import Span, TraceTold
from brisk.runtime.models.session import Frame
from brisk.scheduling.job import Job
from brisk.telemetry.events import SPANS

if TYPE_CHECKING:
    from brisk.runtime.worker.batch import Request

SPANS_PER_RECORD = 150
MAX_TEXT_CHARACTERS = 200
_TEXTS = ("lane", "name", "request", "details")

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


def trace_run(jobs: Sequence[Job[Request]], frame: Frame, started_ns: int) -> Frame:
    """``frame``, wrapped while spans are recorded; notes how long its jobs have waited."""
    if not SPANS.is_on:
        return frame
    for job in jobs:
        name, context = _names(job)
        wait = f"waits, {job.job_class.value}"
        SPANS.add(QUEUE, wait, job.arrival_ns, started_ns, name, context)
        if (arrived_ns := job.payload.record.arrived_ns) > 0:
            way = f"to the worker, {job.job_class.value}"
            SPANS.add(FRONTEND, way, arrived_ns, job.arrival_ns, name, context)
    requests, contexts = zip(*(_names(job) for job in jobs), strict=True)
    details = " ".join(context for context in contexts if context)
    return cast(Frame, TracedFrame(frame, ", ".join(requests), details))


def trace_answer(job: Job[Request], answered_ns: int) -> None:
    """A request was answered, well or not, just after ``answered_ns``."""
    if SPANS.is_on:
        name, context = _names(job)
        model = job.payload.binding.model
        text = f"{model.name} {model.version}, {job.job_class.value}"
        SPANS.add(REQUESTS, text, job.arrival_ns, answered_ns, name, context)


def _names(job: Job[Request]) -> tuple[str, str]:
    """What the request is called in the stub, too, and its trace context."""
    peer, record = job.payload.peer, job.payload.record
    return f"request {record.request} of process {peer.pid}", record.trace_context


def told_trace() -> list[TraceTold]:
    """End the recording; its spans as records."""
    spans, left_out = SPANS.end()
    parts = [
        spans[start : start + SPANS_PER_RECORD] for start in range(0, len(spans), SPANS_PER_RECORD)
    ] or [[]]
    return [
        TraceTold(
            os.getpid(),
            tuple(_cut(span) for span in part),
            left_out,
            number == len(parts),
        )
        for number, part in enumerate(parts, start=1)
    ]


def _cut(span: Span) -> Span:
    """Texts cut to what a record holds."""
    texts = {name: getattr(span, name)[:MAX_TEXT_CHARACTERS] for name in _TEXTS}
    return span._replace(**texts)
