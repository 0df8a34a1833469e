"""A job, one request on its way through the runtime, and in which order waiting ones run."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from brisk.scheduling.job_class import JobClass


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
    """The ordering key of one model's jobs, smaller runs first: class, deadline, arrival.

    No deadline is the latest. No two keys of a queue are equal.
    """
    deadline_ns = NO_DEADLINE_NS if job.deadline_ns is None else job.deadline_ns
    return (RANKS[job.job_class], deadline_ns, job.number)


def in_turn(job: Job, served_ns: int) -> tuple[int, int, int, int]:
    """The ordering key over all models, smaller runs first, whatever policy shares the device
    between classes: class, then earliest deadline, then the service that the job's model has had
    in its class, then arrival.

    ``served_ns``: start-time fair queueing (Goyal, Vin, Cheng, 1996): the time that the device has
    computed for the model, weighed by how many wait (``weight_of``); of one of which
    nothing waited, at least what the model that ran last had when it began. So models without
    deadlines share a class, and one that was idle has no claim to the time.
    """
    rank, deadline_ns, number = most_urgent_first(job)
    return (rank, deadline_ns, served_ns if job.deadline_ns is None else 0, number)


FLOODED = 64
"""From so many on, of one model, its queue is full of somebody's requests."""


def weight_of(waiting: int) -> int:
    """How often the time that was computed for a model counts, of which so many wait: once below
    16, three times at 63, 16 times at 64, 128 times at 512. So who fills ten queues gets a part of
    the time, and not ten parts beside the one of a model that is asked by some clients.
    """
    if waiting >= FLOODED:
        return 16 * (waiting // FLOODED)
    return max(1, waiting.bit_length() - 3)


def more_urgent(one: Job, other: Job) -> bool:
    return RANKS[one.job_class] < RANKS[other.job_class]
