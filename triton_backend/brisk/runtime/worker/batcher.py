"""Which jobs begin next, and which of them together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from brisk.protocol import request_flags
from brisk.runtime.worker.batch import Request, RequestJob, batch_rows, can_join, profile_key
from brisk.scheduling.job import JobClass, JobState
from brisk.scheduling.policy import OrderingKey
from brisk.scheduling.profile import ProfileTable
from brisk.scheduling.queue import ReadyQueue


class Batcher:
    """Takes jobs from ``queue``; used by the worker's main thread."""

    def __init__(
        self,
        queue: ReadyQueue[Request],
        ordering: OrderingKey,
        profiles: ProfileTable,
        clock_ns: Callable[[], int],
    ) -> None:
        self._queue = queue
        self._ordering = ordering
        self._profiles = profiles
        self._clock_ns = clock_ns
        self._alone: deque[RequestJob] = deque()
        """Jobs of a joined run that failed, tried on their own: only the bad one fails."""

    def __len__(self) -> int:
        return len(self._alone) + len(self._queue)

    def retry(self, jobs: Iterable[RequestJob]) -> None:
        """Let running jobs begin again, each alone."""
        for job in jobs:
            request_flags.reset(job.payload.mark)
            self._alone.append(job)

    def following(self, only: JobClass | None = None) -> RequestJob | None:
        """The job whose turn is next, of a class or of all; None where none waits."""
        while self._alone and self._alone[0].state is not JobState.RUNNING:
            self._alone.popleft()
        waiting = self._queue.peek(only)
        if not self._alone or only not in (None, self._alone[0].job_class):
            return waiting
        if waiting is None or self._ordering(self._alone[0]) < self._ordering(waiting):
            return self._alone[0]
        return waiting

    def take(self, only: JobClass | None = None) -> list[RequestJob]:
        """What ``following`` says, now running, with those that are joined to it; empty where
        none waits.
        """
        first = self.following(only)
        if first is None:
            return []
        if self._alone and first is self._alone[0]:
            return [self._alone.popleft()]
        popped = self._queue.pop(only)
        assert popped is first
        if not first.payload.binding.model.batching or not batch_rows(first.payload):
            return [first]
        return [first, *self._queue.pop_companions(first, self._joiner(first))]

    def _joiner(self, first: RequestJob) -> Callable[[RequestJob], bool]:
        """Says of each further job of the model whether it joins.

        Up to a power of two of rows, unless requests have several: a kernel, its buffers and its
        measurements are then there for few batches, and memory settles.
        """
        rows = batch_rows(first.payload)
        most = 1 << (rows + self._queue.waiting(first.model)).bit_length() - 1
        jobs = [first]

        def accept(other: RequestJob) -> bool:
            nonlocal rows
            if rows + batch_rows(other.payload) > most:
                return False
            if not can_join(first.payload, other.payload, rows):
                return False
            if first.job_class is JobClass.REALTIME and not self._in_time([*jobs, other]):
                return False
            rows += batch_rows(other.payload)
            jobs.append(other)
            return True

        return accept

    def _in_time(self, jobs: list[RequestJob]) -> bool:
        """Whether no real-time job is late because of the last one, which must be the next anyway.

        Together they take at most as long as one after the other: then each must be done by the
        earliest of their deadlines. Without deadlines, or where times are not known, a real-time
        job waits for no other.
        """
        if self._queue.peek() is not jobs[-1]:
            return False
        total_ns = 0.0
        for job in jobs:
            run_ns = self._profiles.run_ns(profile_key(job.payload))
            if run_ns is None or job.deadline_ns is None:
                return False
            total_ns += run_ns
        return all(self._clock_ns() + total_ns <= (job.deadline_ns or 0) for job in jobs)
