"""The order of runs, and who may interrupt whom."""

from __future__ import annotations

import itertools

import pytest

from brisk.scheduling.job import Job, more_urgent
from brisk.scheduling.job_class import JobClass
from brisk.scheduling.queue import ReadyQueue

_number = itertools.count(1)


def job(job_class: JobClass, name: str = "", deadline_ns: int | None = None) -> Job:
    return Job(next(_number), name, job_class, 0, deadline_ns)


def order(*jobs: Job) -> list[str]:
    queue: ReadyQueue[Job] = ReadyQueue()
    for each in jobs:
        queue.add(each, None, "model")
    return [popped.model for popped in iter(queue.pop, None)]


def test_a_more_urgent_class_goes_first_however_late_it_came() -> None:
    assert order(
        job(JobClass.BESTEFFORT, "b", 1),
        job(JobClass.NORMAL, "n"),
        job(JobClass.REALTIME, "r"),
    ) == ["r", "n", "b"]


def test_within_a_class_the_earliest_deadline_goes_first_and_none_is_latest() -> None:
    assert order(
        job(JobClass.NORMAL, "none"),
        job(JobClass.NORMAL, "late", 900),
        job(JobClass.NORMAL, "early", 100),
    ) == ["early", "late", "none"]


def test_of_equals_the_first_to_come_goes_first() -> None:
    assert order(*(job(JobClass.NORMAL, name) for name in "abc")) == ["a", "b", "c"]


@pytest.mark.parametrize("waiting", JobClass)
@pytest.mark.parametrize("running", JobClass)
def test_only_a_more_urgent_class_interrupts(waiting: JobClass, running: JobClass) -> None:
    ranks = list(JobClass)
    expected = ranks.index(waiting) < ranks.index(running)
    assert more_urgent(job(waiting, deadline_ns=1), job(running)) is expected


def test_a_look_at_the_next_job_leaves_it_where_it_is() -> None:
    queue: ReadyQueue[Job] = ReadyQueue()
    first = job(JobClass.NORMAL, "a")
    queue.add(first, None, "model")
    assert queue.peek() is first
    assert len(queue) == 1
    assert queue.pop() is first
    assert queue.peek() is None
