"""Jobs and ready queues of a few lines, for tests of their order."""

from __future__ import annotations

from brisk.scheduling.job import Job, JobState
from brisk.scheduling.job_class import JobClass
from brisk.scheduling.queue import ReadyQueue


def job(
    number: int,
    model: str = "m",
    deadline_ns: int | None = None,
    job_class: JobClass = JobClass.NORMAL,
) -> Job:
    return Job(number, model, job_class, 0, deadline_ns)


def queue_of(*jobs: Job) -> ReadyQueue[Job]:
    queue: ReadyQueue[Job] = ReadyQueue()
    for one in jobs:
        queue.add(one, None, one.model)
    return queue


def drained(queue: ReadyQueue[Job]) -> list[int]:
    numbers = []
    while (one := queue.pop()) is not None:
        assert one.state is JobState.RUNNING
        numbers.append(one.number)
    return numbers
