"""The load lane's tasks: the most urgent first, and a task as urgent as who waits for it.

A real-time request that waits for its model to be loaded must not wait for the loads of other
models, which were asked for before: the load inherits its class (priority inheritance).
"""

from __future__ import annotations

import heapq
import threading
from typing import Generic, TypeVar

from brisk.scheduling.job import JobClass

Task = TypeVar("Task")

_RANKS = {job_class.value: rank for rank, job_class in enumerate(JobClass)}
_LAST = len(_RANKS)


class LoadQueue(Generic[Task]):
    """Of equally urgent tasks the first to come goes first. Any thread may use it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._order: list[tuple[int, int]] = []
        self._tasks: dict[int, tuple[int, Task]] = {}
        self._sequence = 0

    def put(self, task: Task, job_class: str | None) -> int:
        """Add a task; its number, for ``hurry``. ``job_class`` None: after everything else."""
        with self._changed:
            self._sequence += 1
            rank = _LAST if job_class is None else _RANKS[job_class]
            self._tasks[self._sequence] = (rank, task)
            heapq.heappush(self._order, (rank, self._sequence))
            self._changed.notify()
            return self._sequence

    def hurry(self, number: int, job_class: str) -> None:
        """Make a task that waits at least as urgent as ``job_class``."""
        with self._changed:
            if number in self._tasks and _RANKS[job_class] < self._tasks[number][0]:
                self._tasks[number] = (_RANKS[job_class], self._tasks[number][1])
                heapq.heappush(self._order, (_RANKS[job_class], number))

    def await_task(self, timeout_s: float) -> bool:
        """Whether there is a task, after the time-out at the latest."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._tasks), timeout_s)

    def get(self) -> Task:
        """The next task; waits for one."""
        with self._changed:
            while not self._tasks:
                self._changed.wait()
            while True:
                rank, number = heapq.heappop(self._order)
                if number in self._tasks and self._tasks[number][0] == rank:
                    return self._tasks.pop(number)[1]
