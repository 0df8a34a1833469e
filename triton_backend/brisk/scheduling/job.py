"""A job, one request on its way through the runtime, and in which order waiting ones run."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class JobClass(str, Enum):
    """How urgent a job is, most urgent first."""

    REALTIME = "realtime"
    NORMAL = "normal"
    BESTEFFORT = "besteffort"


class JobState(Enum):
    """A job that was joined to one that failed waits again; else it goes only down."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Job:
    """``number``: order of arrival, unique in a queue. ``model``: whose bound it counts
    against. ``arrival_ns`` and ``deadline_ns``: times of the queue's clock; no deadline: None.
    """

    number: int
    model: str
    job_class: JobClass
    arrival_ns: int
    deadline_ns: int | None
    state: JobState = field(default=JobState.WAITING, init=False)

    def is_late(self, now_ns: int) -> bool:
        return self.deadline_ns is not None and self.deadline_ns <= now_ns


NO_DEADLINE_NS = 2**63

RANKS = {job_class: rank for rank, job_class in enumerate(JobClass)}
"""0: the most urgent."""


def most_urgent_first(job: Job) -> tuple[int, int, int]:
    """The ordering key, smaller runs first, whatever policy shares the device between classes:
    class, then earliest deadline (none is latest), then arrival, over all models.

    No two keys of a queue are equal. Within a class and without deadlines, models take turns as
    their requests came.
    """
    deadline_ns = NO_DEADLINE_NS if job.deadline_ns is None else job.deadline_ns
    return (RANKS[job.job_class], deadline_ns, job.number)


def more_urgent(one: Job, other: Job) -> bool:
    return RANKS[one.job_class] < RANKS[other.job_class]
