"""A job: one request on its way through the runtime."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

Payload = TypeVar("Payload")


class JobClass(str, Enum):
    """How urgent a job is, most urgent first."""

    REALTIME = "realtime"
    NORMAL = "normal"
    BESTEFFORT = "besteffort"


class JobState(Enum):
    """Where a job is; it leaves ``WAITING`` and ``RUNNING`` at most once each."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Job(Generic[Payload]):
    """One request.

    ``sequence``: order of arrival, unique in a queue. ``model``: whose bound it counts
    against. ``arrival_ns`` and ``deadline_ns``: times of the queue's clock; no deadline: None.
    """

    sequence: int
    model: str
    job_class: JobClass
    arrival_ns: int
    deadline_ns: int | None
    payload: Payload
    state: JobState = field(default=JobState.WAITING)

    def is_late(self, now_ns: int) -> bool:
        """Whether its answer is of no use any more."""
        return self.deadline_ns is not None and self.deadline_ns <= now_ns
