"""A job, one request on its way through the runtime, and in which order waiting ones run."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

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


NO_DEADLINE_NS = 2**63

RANKS = {job_class: rank for rank, job_class in enumerate(JobClass)}
"""0: the most urgent."""


def most_urgent_first(job: Job[Any]) -> tuple[int, int, int]:
    """The ordering key, smaller runs first, whatever policy shares the device between classes:
    class, then earliest deadline (none is latest), then arrival, over all models.

    No two keys of a queue are equal. Within a class and without deadlines, models take turns as
    their requests came.
    """
    deadline_ns = NO_DEADLINE_NS if job.deadline_ns is None else job.deadline_ns
    return (RANKS[job.job_class], deadline_ns, job.sequence)


def more_urgent(one: Job[Any], other: Job[Any]) -> bool:
    """Whether ``one`` is of a more urgent class."""
    return RANKS[one.job_class] < RANKS[other.job_class]
