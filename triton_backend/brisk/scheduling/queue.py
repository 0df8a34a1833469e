"""The ready queue: waiting jobs, the most urgent first, bounded per model.

Used by the worker's one scheduling thread; not thread-safe.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Generic, TypeVar

from brisk.errors import UnavailableError
from brisk.scheduling.job import (
    Job,
    JobClass,
    JobState,
    more_urgent,
    most_urgent_first,
)

DEFAULT_BOUND = 4096
"""Jobs of all models that may wait."""

DEFAULT_RETRY_NS = 100_000_000
"""Hint where nothing is known of how long the requests that wait will take."""


AnyJob = TypeVar("AnyJob", bound=Job)


class ReadyQueue(Generic[AnyJob]):
    """Jobs that wait, smallest ordering key first."""

    def __init__(self, bound: int = DEFAULT_BOUND) -> None:
        self._bound = bound
        self._ready: dict[JobClass, list[tuple[tuple[int, ...], AnyJob]]] = {
            job_class: [] for job_class in JobClass
        }
        """A heap for each class, the most urgent first."""
        self._waiting: dict[str, int] = {}
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def waiting(self, model: str) -> int:
        return self._waiting.get(model, 0)

    def add(self, job: AnyJob, limit: int | None, name: str) -> AnyJob | None:
        """Take a job in; the job that had to make room for it, or None.

        Room is short where ``limit`` jobs of its model or ``bound`` in all wait already. Then the
        last of those leaves, if it is of a less urgent class, else UnavailableError. ``limit``
        None: there is room whatever waits. ``name`` is the model's, for the message.
        """
        shed = None
        if limit is not None:
            is_full = self.waiting(job.model) >= limit
            if is_full or len(self) >= self._bound:
                waiting = (
                    entry
                    for entry in self._waiting_entries()
                    if not is_full or entry[1].model == job.model
                )
                _, shed = max(waiting, key=itemgetter(0), default=(None, None))
                if shed is None or not more_urgent(job, shed):
                    raise UnavailableError(
                        f"{limit} requests of model '{name}' wait already, which is its "
                        "brisk_max_queue_size"
                        if is_full
                        else f"{self._bound} requests wait already, which is BRISK_MAX_WAITING"
                    )
                self.withdraw(shed)
        self._waiting[job.model] = self.waiting(job.model) + 1
        self._total += 1
        heapq.heappush(self._ready[job.job_class], (most_urgent_first(job), job))
        if self.entries > 2 * len(self) + 64:  # most of them have left without being first
            self._forget_left()
        return shed

    def put_back(self, job: AnyJob) -> None:
        """A running job waits again, whatever waits."""
        self._forget_left()  # a companion's entry is there yet, and has the same key
        job.state = JobState.WAITING
        self.add(job, None, "")

    def _forget_left(self) -> None:
        for ready in self._ready.values():
            ready[:] = [entry for entry in ready if entry[1].state is JobState.WAITING]
            heapq.heapify(ready)

    def peek(self, only: JobClass | None = None) -> AnyJob | None:
        """The next job, of a class or of all, left where it is; None where nothing waits."""
        for ready in self._ready.values() if only is None else (self._ready[only],):
            while ready and ready[0][1].state is not JobState.WAITING:
                heapq.heappop(ready)
            if ready:
                return ready[0][1]
        return None

    def pop(self, only: JobClass | None = None) -> AnyJob | None:
        """The next job, of a class or of all, now running; None where nothing waits."""
        job = self.peek(only)
        if job is not None:
            heapq.heappop(self._ready[job.job_class])
            self._leave(job, JobState.RUNNING)
        return job

    def pop_companions(self, first: AnyJob, accept: Callable[[AnyJob], bool]) -> list[AnyJob]:
        """Further jobs of ``first``'s model, in order, while ``accept`` says yes; running now.

        Stops at the first one refused, so that no job of a model overtakes another.
        """
        companions = []
        same_model = (entry for entry in self._waiting_entries() if entry[1].model == first.model)
        for _, job in sorted(same_model, key=itemgetter(0)):
            if not accept(job):
                break
            self._leave(job, JobState.RUNNING)
            companions.append(job)
        return companions

    def withdraw(self, job: AnyJob) -> bool:
        """Take a waiting job out; False where it does not wait any more."""
        if job.state is not JobState.WAITING:
            return False
        self._leave(job, JobState.ENDED)
        return True

    def expire(self, now_ns: int) -> list[AnyJob]:
        """Take out the jobs whose deadline has passed: of each class they come first."""
        expired: list[AnyJob] = []
        if not self._total:
            return expired
        for ready in self._ready.values():
            while ready:
                job = ready[0][1]
                if job.state is JobState.WAITING:
                    if not job.is_late(now_ns):
                        break
                    self._leave(job, JobState.ENDED)
                    expired.append(job)
                heapq.heappop(ready)
        return expired

    @property
    def entries(self) -> int:
        """Of its heaps, jobs that have left included."""
        return sum(map(len, self._ready.values()))

    def check_integrity(self) -> None:
        """AssertionError where the counts and the heap disagree."""
        counted = Counter(job.model for _, job in self._waiting_entries())
        assert counted == self._waiting, f"{counted} wait, {self._waiting} counted"
        assert counted.total() == self._total, f"{counted.total()} wait, {self._total} counted"

    def _waiting_entries(self) -> Iterator[tuple[tuple[int, ...], AnyJob]]:
        for ready in self._ready.values():
            yield from (entry for entry in ready if entry[1].state is JobState.WAITING)

    def _leave(self, job: AnyJob, state: JobState) -> None:
        job.state = state
        self._total -= 1
        left = self._waiting.pop(job.model) - 1
        if left:
            self._waiting[job.model] = left


# Whom it refuses, and when to try again: layer times are predictable (REEF, 2.1).


def refuse_if_late(
    now_ns: int,
    deadline_ns: int,
    running_end_ns: int | None,
    ahead_ns: Iterable[float | None],
    run_ns: float | None,
) -> None:
    """UnavailableError, with a hint when to try again, where the deadline cannot be met.

    ``running_end_ns``: expected end of the run under way that it will not interrupt. ``ahead_ns``:
    the times of the jobs that go first, ``run_ns``: its own; what is not known counts nothing, so
    that no request is refused on a guess.
    """
    if run_ns is None:
        return
    start_ns = max(now_ns, running_end_ns or now_ns) + sum(taken_ns or 0 for taken_ns in ahead_ns)
    end_ns = start_ns + run_ns
    if end_ns <= deadline_ns:
        return
    raise UnavailableError(
        f"the time-out of {(deadline_ns - now_ns) / 1e6:.1f} ms cannot be met: the device is "
        f"expected to be free in {(start_ns - now_ns) / 1e6:.1f} ms and the request takes "
        f"{run_ns / 1e6:.1f} ms; {retry_hint(end_ns - deadline_ns)}"
    )


def retry_hint(wait_ns: float | None) -> str:
    """The end of a refusal: ``retry in N ms``, N a whole number of at least 1."""
    wait_ms = math.ceil((DEFAULT_RETRY_NS if wait_ns is None else wait_ns) / 1e6)
    return f"retry in {max(1, wait_ms)} ms"
