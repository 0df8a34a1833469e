"""A queue of load tasks, the most urgent first, and its threads, which do one task at a time
unless a task takes long.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from brisk.scheduling.job import RANKS
from brisk.scheduling.job_class import JobClass

Task = TypeVar("Task")

SLOW_S = 1.0
"""A task that takes longer than this is slow, and the next one does not wait for it."""

MOST_THREADS = 4

_LAST = len(RANKS)


class LoadQueue(Generic[Task]):
    """Yields the most urgent task first; a task is as urgent as the requests that wait for it.

    A real-time request that waits for its model to be loaded must not wait for the loads of other
    models, which were asked for before: the load inherits its class (priority inheritance). Among
    equally urgent tasks the first to come goes first. Any thread may use the queue.
    """

    def __init__(self, slow_s: float = SLOW_S) -> None:
        self._slow_s = slow_s
        self._changed = threading.Condition()
        self._ranks: dict[Task, int] = {}
        """The tasks' ranks, in the order in which the tasks came."""
        self._begun_s: list[float] = []
        """The times when the tasks under way began."""
        self._work: Callable[[Task], None] | None = None
        self._name = ""
        self._threads = 0

    def serve(self, work: Callable[[Task], None], name: str) -> None:
        """Have a thread of the queue do ``work`` on each task, and up to MOST_THREADS threads if
        tasks are slow. ``work`` raises nothing.
        """
        with self._changed:
            self._work, self._name = work, name
            self._add_thread()

    def _have_a_free_thread(self) -> None:
        """If all threads are busy, start one that waits until the tasks under way are slow."""
        if self._work and len(self._begun_s) == self._threads < MOST_THREADS:
            with contextlib.suppress(RuntimeError):  # the system has none left: the task waits
                self._add_thread()

    def _add_thread(self) -> None:
        threading.Thread(target=self._run, name=self._name, daemon=True).start()
        self._threads += 1

    def _run(self) -> None:
        assert self._work is not None
        while True:
            task, begun_s = self.take()
            try:
                self._work(task)
            finally:
                self.done(begun_s)
            del task  # a session that the task refers to must not live longer in this thread

    def put(self, task: Task, job_class: str | None) -> None:
        """Add a task; a task waits at most once. ``job_class`` None: it goes after all others."""
        with self._changed:
            self._ranks[task] = _LAST if job_class is None else RANKS[JobClass(job_class)]
            self._have_a_free_thread()
            self._changed.notify_all()

    def raise_priority(self, task: Task, job_class: str) -> None:
        """Raise the priority of a task that waits to that of ``job_class`` at least."""
        with self._changed:
            if task in self._ranks:
                self._ranks[task] = min(self._ranks[task], RANKS[JobClass(job_class)])

    def discard(self, task: Task) -> None:
        """Take out a task, if it waits."""
        with self._changed:
            self._ranks.pop(task, None)

    def is_empty(self) -> bool:
        return not self._ranks

    def await_task(self, timeout_s: float) -> bool:
        """Wait for a task, for ``timeout_s`` at most. Return whether there is one."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._ranks), timeout_s)

    def take(self) -> tuple[Task, float]:
        """Take out and return the next task, and when it began, to be passed to ``done``. Block
        until there is a task and those under way are slow or over.
        """
        with self._changed:
            while True:
                now_s = time.monotonic()
                patience_s: float | None = None
                if self._ranks:
                    youngest_s = max(self._begun_s, default=now_s - self._slow_s)
                    patience_s = youngest_s + self._slow_s - now_s
                    if patience_s <= 0:
                        break
                self._changed.wait(patience_s)
            task = min(self._ranks, key=self._ranks.__getitem__)  # the first of equals
            del self._ranks[task]
            self._begun_s.append(now_s)
            if self._ranks:
                self._have_a_free_thread()
            return task, now_s

    def done(self, begun_s: float) -> None:
        """Note that the task that began at ``begun_s`` is over."""
        with self._changed:
            self._begun_s.remove(begun_s)
            self._changed.notify_all()
