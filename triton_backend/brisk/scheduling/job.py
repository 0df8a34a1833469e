"""A job, which is one request on its way through the runtime, and the order of waiting jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from brisk.scheduling.job_class import JobClass


class JobState(Enum):
    """The state of a job. It only advances, except that a job that was joined to one that failed
    waits again."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Job:
    """A request. Its times are those of the queue's clock."""

    number: int
    """The order of arrival, unique in a queue."""
    model: str
    """The model against whose bound the job counts."""
    job_class: JobClass
    arrival_ns: int
    deadline_ns: int | None
    """The deadline; None if there is none."""
    state: JobState = field(default=JobState.WAITING, init=False)

    def is_late(self, now_ns: int) -> bool:
        return self.deadline_ns is not None and self.deadline_ns <= now_ns


NO_DEADLINE_NS = 2**63

RANKS = {job_class: rank for rank, job_class in enumerate(JobClass)}
"""The ranks of classes; 0 is the most urgent."""


def most_urgent_first(job: Job) -> tuple[int, int, int]:
    """Return the ordering key of one model's jobs, smaller runs first: class, deadline, arrival.

    A job without a deadline comes last. No two keys of a queue are equal.
    """
    deadline_ns = NO_DEADLINE_NS if job.deadline_ns is None else job.deadline_ns
    return (RANKS[job.job_class], deadline_ns, job.number)


def in_turn(job: Job, served_ns: int) -> tuple[int, int, int, int]:
    """Return the ordering key over all models, smaller runs first, under any policy for sharing
    the device between classes: class, then earliest deadline, then the service that the job's
    model has had in its class, then arrival.

    ``served_ns``: start-time fair queueing (Goyal, Vin, Cheng, 1996): the time that the device has
    computed for the model, weighted by how many of its jobs wait (``weight_of``). For a model of
    which nothing waited it is at least what the model that ran last had when it began. So models
    without deadlines share a class, and a model that was idle has no claim to the idle time.
    """
    rank, deadline_ns, number = most_urgent_first(job)
    return (rank, deadline_ns, served_ns if job.deadline_ns is None else 0, number)


FLOODED = 64
"""The number of waiting requests from which on a model's queue counts as flooded."""


def weight_of(waiting: int) -> int:
    """Return the weight of the time computed for a model of which ``waiting`` jobs wait.

    It is 1 below 16, 3 at 63, 16 at 64 and 128 at 512. So a client that fills ten queues gets a
    fraction of the time, and not ten times that of a model with requests from a few clients.
    """
    if waiting >= FLOODED:
        return 16 * (waiting // FLOODED)
    return max(1, waiting.bit_length() - 3)


def more_urgent(one: Job, other: Job) -> bool:
    return RANKS[one.job_class] < RANKS[other.job_class]
