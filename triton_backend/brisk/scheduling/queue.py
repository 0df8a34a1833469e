"""The ready queue: waiting jobs, the most urgent first, bounded per model.

Used by the worker's one scheduling thread; not thread-safe.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeAlias, TypeVar

from brisk.errors import UnavailableError
from brisk.scheduling.job import (
    Job,
    JobClass,
    JobState,
    in_turn,
    more_urgent,
    most_urgent_first,
)

DEFAULT_BOUND = 4096
"""Jobs of all models that may wait."""

MOST_SERVED = 1024
"""Models of a class whose service is remembered: beyond, that of idle ones is forgotten, the least
first."""

DEFAULT_RETRY_NS = 100_000_000
"""Hint where nothing is known of how long the requests that wait will take."""


AnyJob = TypeVar("AnyJob", bound=Job)


_Line: TypeAlias = "list[tuple[int, int, AnyJob]]"
"""A heap of deadline, number and job; some jobs may have left."""

_DUE = ""
"""Names the line of jobs that have a deadline, of whatever model."""


class ReadyQueue(Generic[AnyJob]):
    """Jobs that wait, smallest ordering key (``in_turn``) first."""

    def __init__(self, bound: int = DEFAULT_BOUND) -> None:
        self._bound = bound
        self._lines: dict[JobClass, dict[str, _Line[AnyJob]]] = {
            job_class: {} for job_class in JobClass
        }
        """For each class a line of what has a deadline, and one for each model of what has not."""
        self._first: dict[JobClass, AnyJob | None] = dict.fromkeys(JobClass)
        """The next job of a class, where it is known; it may have left."""
        self._served_ns: dict[JobClass, dict[str, int]] = {job_class: {} for job_class in JobClass}
        self._begun_ns = dict.fromkeys(JobClass, 0)
        """What the model that began last had been served then: never less than before."""
        self._waiting: dict[str, int] = {}
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def waiting(self, model: str) -> int:
        return self._waiting.get(model, 0)

    def charge(self, job_class: JobClass, model: str, taken_ns: int) -> None:
        """The device has computed for a model; it counts against its later turns."""
        served_ns = self._served_ns[job_class]
        served_ns[model] = served_ns.get(model, 0) + taken_ns
        self._first[job_class] = None
        if len(served_ns) > MOST_SERVED:
            idle = sorted((each_ns, name) for name, each_ns in served_ns.items())
            for _, name in idle[: MOST_SERVED // 2]:
                if name not in self._waiting:
                    del served_ns[name]

    def add(self, job: AnyJob, limit: int | None, name: str) -> AnyJob | None:
        """Take a job in; the job that had to make room for it, or None.

        Room is short where ``limit`` jobs of its model or ``bound`` in all wait already. Then the
        last of those leaves, if it is of a less urgent class; where ``bound`` is reached, else the
        last one of the model that most wait of, if that is of the same class and would still be
        one of more than wait of the job's own model; else UnavailableError. ``limit`` None: there
        is room whatever waits. ``name`` is the model's, for the message.
        """
        shed = None
        if limit is not None:
            if self.waiting(job.model) >= limit:
                shed = self._last(model=job.model)
                if shed is None or not more_urgent(job, shed):
                    raise UnavailableError(
                        f"{limit} requests of model '{name}' wait already, which is its "
                        "brisk_max_queue_size"
                    )
            elif len(self) >= self._bound:
                shed = self._last()
                if shed is None or not more_urgent(job, shed):
                    shed = self._last_of_longest(job)
                if shed is None:
                    raise UnavailableError(
                        f"{self._bound} requests wait already, which is BRISK_MAX_WAITING"
                    )
            if shed is not None:
                self.withdraw(shed)
        self._join(job)
        if self.entries > 2 * len(self) + 64:  # most of them have left without being first
            self._forget_left()
        return shed

    def _join(self, job: AnyJob) -> None:
        lines, served_ns = self._lines[job.job_class], self._served_ns[job.job_class]
        name = job.model if job.deadline_ns is None else _DUE
        line = lines.setdefault(name, [])
        if name != _DUE and not self._head(line):
            served_ns[name] = max(served_ns.get(name, 0), self._begun_ns[job.job_class])
        heapq.heappush(line, (job.deadline_ns or 0, job.number, job))
        self._waiting[job.model] = self.waiting(job.model) + 1
        self._total += 1
        self._first[job.job_class] = None

    def _key(self, job: AnyJob) -> tuple[int, int, int, int]:
        return in_turn(job, self._served_ns[job.job_class].get(job.model, 0))

    def _last(self, model: str | None = None) -> AnyJob | None:
        """The least urgent job that waits, of a model or of all."""
        waiting = (job for job in self._waiting_jobs() if model is None or job.model == model)
        return max(waiting, key=self._key, default=None)

    def _last_of_longest(self, newcomer: AnyJob) -> AnyJob | None:
        longest = max(self._waiting, key=self.waiting, default=None)
        if longest is None or self.waiting(longest) <= self.waiting(newcomer.model) + 1:
            return None
        last = self._last(longest)
        return last if last is not None and last.job_class is newcomer.job_class else None

    def put_back(self, job: AnyJob) -> None:
        """A running job waits again, whatever waits."""
        self._forget_left()  # a companion's entry is there yet, and has the same key
        job.state = JobState.WAITING
        self.add(job, None, "")

    def _forget_left(self) -> None:
        for lines in self._lines.values():
            for name, line in list(lines.items()):
                line[:] = [entry for entry in line if entry[2].state is JobState.WAITING]
                heapq.heapify(line)
                if not line:
                    del lines[name]

    def peek(self, only: JobClass | None = None) -> AnyJob | None:
        """The next job, of a class or of all, left where it is; None where nothing waits."""
        for job_class in JobClass if only is None else (only,):
            first = self._first[job_class]
            if first is None or first.state is not JobState.WAITING:
                first = self._first[job_class] = self._find_first(job_class)
            if first is not None:
                return first
        return None

    def _find_first(self, job_class: JobClass) -> AnyJob | None:
        lines = self._lines[job_class]
        if not lines:
            return None
        heads = {name: self._head(line) for name, line in lines.items()}
        for name in [name for name, head in heads.items() if head is None]:
            del lines[name]
        found = [head for head in heads.values() if head is not None]
        return min(found, key=self._key, default=None)

    @staticmethod
    def _head(line: _Line[AnyJob]) -> AnyJob | None:
        while line and line[0][2].state is not JobState.WAITING:
            heapq.heappop(line)
        return line[0][2] if line else None

    def pop(self, only: JobClass | None = None) -> AnyJob | None:
        """The next job, of a class or of all, now running; None where nothing waits."""
        job = self.peek(only)
        if job is not None:
            self._leave(job, JobState.RUNNING)
            served_ns = self._served_ns[job.job_class].get(job.model, 0)
            if job.deadline_ns is None:
                self._begun_ns[job.job_class] = max(self._begun_ns[job.job_class], served_ns)
        return job

    def pop_companions(self, first: AnyJob, accept: Callable[[AnyJob], bool]) -> list[AnyJob]:
        """Further jobs of ``first``'s model, in order, while ``accept`` says yes; running now.

        Stops at the first one refused, so that no job of a model overtakes another.
        """
        companions: list[AnyJob] = []
        if not self.waiting(first.model):
            return companions
        same_model = (job for job in self._waiting_jobs() if job.model == first.model)
        for job in sorted(same_model, key=most_urgent_first):
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
        """Take out the jobs whose deadline has passed."""
        expired: list[AnyJob] = []
        if not self._total:
            return expired
        for lines in self._lines.values():
            line = lines.get(_DUE, [])
            while (job := self._head(line)) is not None and job.is_late(now_ns):
                self._leave(job, JobState.ENDED)
                expired.append(job)
        return expired

    @property
    def entries(self) -> int:
        """What its lines hold, jobs that have left included."""
        return sum(len(line) for lines in self._lines.values() for line in lines.values())

    @property
    def remembered(self) -> int:
        """Models whose service counts, in each class."""
        return max(map(len, self._served_ns.values()))

    def check_integrity(self) -> None:
        """AssertionError where the counts and the lines disagree."""
        counted = Counter(job.model for job in self._waiting_jobs())
        assert counted == self._waiting, f"{counted} wait, {self._waiting} counted"
        assert counted.total() == self._total, f"{counted.total()} wait, {self._total} counted"

    def _waiting_jobs(self) -> Iterator[AnyJob]:
        for lines in self._lines.values():
            for line in lines.values():
                yield from (job for _, _, job in line if job.state is JobState.WAITING)

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
