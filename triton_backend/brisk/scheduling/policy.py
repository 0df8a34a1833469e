"""In which order waiting jobs run: one key, whatever policy shares the device between classes.

Pure functions of jobs; the worker, which obeys them, owns time and device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from brisk.scheduling.job import Job, JobClass

OrderingKey: TypeAlias = Callable[[Job[Any]], tuple[int, ...]]
"""Smaller runs first. The last element is the job's sequence, so no two keys are equal."""

NO_DEADLINE_NS = 2**63

_RANKS = {job_class: rank for rank, job_class in enumerate(JobClass)}


def most_urgent_first(job: Job[Any]) -> tuple[int, ...]:
    """Class, then earliest deadline (none is latest), then arrival, over all models.

    So within a class and without deadlines, models take turns as their requests came.
    """
    deadline_ns = NO_DEADLINE_NS if job.deadline_ns is None else job.deadline_ns
    return (_RANKS[job.job_class], deadline_ns, job.sequence)


def more_urgent(one: Job[Any], other: Job[Any]) -> bool:
    """Whether ``one`` is of a more urgent class."""
    return _RANKS[one.job_class] < _RANKS[other.job_class]
