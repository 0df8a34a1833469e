"""The ready queue: waiting jobs, the most urgent first, with a bound for each model.

Used by the worker's only scheduling thread; not thread-safe.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from brisk.errors import UnavailableError
from brisk.scheduling.job import (
    NO_DEADLINE_NS,
    Job,
    JobState,
    in_turn,
    weight_of,
)
from brisk.scheduling.job_class import JobClass

DEFAULT_BOUND = 4096
"""The number of jobs, of all models together, that may wait."""

MOST_SERVED = 1024
"""The number of models of a class whose service is remembered. Beyond it, the service of idle
models is forgotten, the least service first."""

ALIKE = 32
"""The number of jobs of one model in a row from which on its class counts as not contended."""


AnyJob = TypeVar("AnyJob", bound=Job)

_WAITING = JobState.WAITING


class _ClassTurns(Generic[AnyJob]):
    """The waiting jobs of one class, and the next one of these (``in_turn``)."""

    __slots__ = ("_first", "_latest", "alike", "begun_ns", "lines", "served_ns")

    def __init__(self) -> None:
        self.lines: dict[str, list[tuple[int, int, AnyJob]]] = {}
        """For each model a heap of deadline, number and job. Some of the jobs may have left."""
        self.served_ns: dict[str, int] = {}
        """The service of each model."""
        self.begun_ns = 0
        """The service that the model which began last had at that moment; it never decreases."""
        self._first: AnyJob | None = None  # as last looked up; it may have left since
        self._latest = ""
        self.alike = ALIKE
        """The number of jobs of one model that have begun in a row after the first."""

    def join(self, job: AnyJob) -> None:
        name = job.model
        line = self.lines.setdefault(name, [])
        if self._head(line) is None and self.served_ns.get(name, 0) < self.begun_ns:
            self.served_ns[name] = self.begun_ns
        deadline_ns = NO_DEADLINE_NS if job.deadline_ns is None else job.deadline_ns
        heapq.heappush(line, (deadline_ns, job.number, job))
        self._first = None

    def first(self) -> AnyJob | None:
        first = self._first
        if first is None or first.state is not _WAITING:
            first = self._first = self._find_first()
        return first

    def _find_first(self) -> AnyJob | None:
        first: AnyJob | None = None
        least = (NO_DEADLINE_NS, math.inf, 0)
        empty = []
        for name, line in self.lines.items():
            head = self._head(line)
            if head is None:
                empty.append(name)
            elif line[0][0] <= least[0]:
                served_ns = self.served_ns.get(name, 0) if head.deadline_ns is None else 0
                turn = (line[0][0], served_ns, head.number)
                if turn < least:
                    first, least = head, turn
        for name in empty:
            del self.lines[name]
        return first

    @staticmethod
    def _head(line: list[tuple[int, int, AnyJob]]) -> AnyJob | None:
        while line:
            job = line[0][2]
            if job.state is _WAITING:
                return job
            heapq.heappop(line)
        return None

    def begins(self, job: AnyJob) -> None:
        self.alike = self.alike + 1 if job.model == (self._latest or job.model) else 0
        self._latest = job.model
        if job.deadline_ns is None:
            served_ns = self.served_ns.get(job.model, 0)
            if served_ns > self.begun_ns:
                self.begun_ns = served_ns

    def charge(self, model: str, taken_ns: int, waiting: Mapping[str, int]) -> None:
        served_ns = self.served_ns
        served_ns[model] = served_ns.get(model, 0) + weight_of(waiting.get(model, 0)) * taken_ns
        if self._first is not None and self._first.deadline_ns is None:
            self._first = None
        if len(served_ns) > MOST_SERVED:
            idle = sorted((each_ns, name) for name, each_ns in served_ns.items())
            for _, name in idle[: MOST_SERVED // 2]:
                if name not in waiting:
                    del served_ns[name]

    def first_late(self, now_ns: int) -> AnyJob | None:
        first = self.first()  # of all, since a deadline comes before none
        return first if first is not None and first.is_late(now_ns) else None

    def of_model(self, model: str) -> Iterator[AnyJob]:
        """Yield jobs of a model, in order, while the caller takes each out; end after a job that
        stays."""
        line = self.lines.get(model, [])
        while (head := self._head(line)) is not None:
            yield head
            if head.state is _WAITING:
                return

    def waiting(self) -> Iterator[AnyJob]:
        for line in self.lines.values():
            yield from (job for _, _, job in line if job.state is _WAITING)

    def last(self, model: str | None) -> AnyJob | None:
        """Return the last job in the order, of a model or of all."""
        lines = self.lines.values() if model is None else [self.lines.get(model, [])]
        waiting = ([each for each in line if each[2].state is _WAITING] for line in lines)
        lasts = [max(entries)[2] for entries in waiting if entries]
        return max(lasts, key=self.key, default=None)

    def key(self, job: AnyJob) -> tuple[int, int, int, int]:
        return in_turn(job, self.served_ns.get(job.model, 0))

    def clear(self) -> None:
        """Forget all jobs. Precondition: all have left."""
        self.lines.clear()
        self._first = None

    def forget_left(self) -> None:
        for name, line in list(self.lines.items()):
            line[:] = [entry for entry in line if entry[2].state is _WAITING]
            heapq.heapify(line)
            if not line:
                del self.lines[name]


class ReadyQueue(Generic[AnyJob]):
    """Waiting jobs, the smallest ordering key (``in_turn``) first."""

    def __init__(self, bound: int = DEFAULT_BOUND) -> None:
        self._bound = bound
        self._turns: dict[JobClass, _ClassTurns[AnyJob]] = {
            job_class: _ClassTurns() for job_class in JobClass
        }
        self._in_order = tuple(self._turns.values())
        self._waiting: dict[str, int] = {}
        self._of_class = dict.fromkeys(JobClass, 0)
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def waiting(self, model: str) -> int:
        return self._waiting.get(model, 0)

    def waiting_of(self, job_class: JobClass) -> int:
        return self._of_class[job_class]

    def jobs(self) -> Iterator[AnyJob]:
        """Yield the waiting jobs."""
        for turns in self._in_order:
            yield from turns.waiting()

    def charge(self, job_class: JobClass, model: str, taken_ns: int) -> None:
        """Charge a model for the time that the device has computed for it.

        The time delays the model's later turns, by more the more of its jobs wait (``weight_of``).
        """
        self._turns[job_class].charge(model, taken_ns, self._waiting)

    def add(self, job: AnyJob, limit: int | None, name: str) -> AnyJob | None:
        """Take a job in. Return the job that had to make room for it, if any.

        The queue is full if ``limit`` jobs of the model or ``bound`` in all wait already. Then the
        last of those leaves if its class is less urgent. Otherwise, if ``bound`` is reached, the
        last job of the model with the most waiting jobs leaves if it is of the same class and its
        model would still have more of them than the new job's. Raises UnavailableError if none
        leaves. ``limit`` None: there is always room. ``name``: the model's, for the message.
        """
        shed = None
        waiting = self._waiting.get(job.model, 0)
        if limit is not None:
            if waiting >= limit:
                shed = self._last_less_urgent(job, job.model)
                if shed is None:
                    raise UnavailableError(
                        f"{limit} requests of model '{name}' wait already, which is its "
                        "brisk_max_queue_size"
                    )
            elif self._total >= self._bound:
                shed = self._last_less_urgent(job) or self._last_of_longest(job)
                if shed is None:
                    raise UnavailableError(
                        f"{self._bound} requests wait already, which is BRISK_MAX_WAITING"
                    )
            if shed is not None:
                self.withdraw(shed)
        self._turns[job.job_class].join(job)
        self._waiting[job.model] = self._waiting.get(job.model, 0) + 1
        self._of_class[job.job_class] += 1
        self._total += 1
        if self.entries > 4 * self._total + 64:  # most jobs have left without having been first
            self._forget_left()
        return shed

    def _last_less_urgent(self, job: AnyJob, model: str | None = None) -> AnyJob | None:
        """Return the least urgent waiting job, of a model or of all, if its class is less urgent
        than that of ``job``."""
        for job_class, turns in reversed(self._turns.items()):
            if job_class is job.job_class:
                break
            # nobody is looked at for those that are refused in a flood of one class
            if self._of_class[job_class] and (last := turns.last(model)) is not None:
                return last
        return None

    def _last_of_longest(self, newcomer: AnyJob) -> AnyJob | None:
        """Return the last job of the model with the most waiting jobs, if it is of the newcomer's
        class. Precondition: none that waits is of a less urgent one."""
        longest = max(self._waiting, key=self.waiting, default=None)
        if longest is None or self.waiting(longest) <= self.waiting(newcomer.model) + 1:
            return None
        return self._turns[newcomer.job_class].last(longest)

    def put_back(self, job: AnyJob) -> None:
        """Let a running job wait again, however many wait."""
        self._forget_left()  # a joined job's entry is still there, and has the same key
        job.state = JobState.WAITING
        self.add(job, None, "")

    def _forget_left(self) -> None:
        for turns in self._in_order:
            turns.forget_left()

    def peek(self, only: JobClass | None = None) -> AnyJob | None:
        """Return the next job, of a class or of all, and leave it there; None: nothing waits."""
        if not self._total:
            return None
        for turns in self._in_order if only is None else (self._turns[only],):
            if turns.lines and (first := turns.first()) is not None:
                return first
        return None

    def pop(self, only: JobClass | None = None) -> AnyJob | None:
        """Take out and return the next job, of a class or of all, now running; None if none."""
        job = self.peek(only)
        if job is not None:
            self._leave(job, JobState.RUNNING)
            self._turns[job.job_class].begins(job)
        return job

    def is_contended(self, job_class: JobClass) -> bool:
        """Return whether several models of a class currently have requests."""
        return self._turns[job_class].alike < ALIKE

    def pop_companions(self, first: AnyJob, accept: Callable[[AnyJob], bool]) -> list[AnyJob]:
        """Take out and return further jobs of ``first``'s model and class, in order, as running,
        while ``accept`` is true.

        Stop at the first refused job, so that no job of a model overtakes another.
        """
        companions: list[AnyJob] = []
        if first.model not in self._waiting:
            return companions
        for job in self._turns[first.job_class].of_model(first.model):
            if not accept(job):
                break
            self._leave(job, JobState.RUNNING)
            companions.append(job)
        return companions

    def withdraw(self, job: AnyJob) -> bool:
        """Take a waiting job out. Return False if it does not wait any more."""
        if job.state is not JobState.WAITING:
            return False
        self._leave(job, JobState.ENDED)
        return True

    def expire(self, now_ns: int) -> list[AnyJob]:
        """Take out and return the jobs whose deadline has passed."""
        expired: list[AnyJob] = []
        if not self._total:
            return expired
        for turns in self._in_order:
            while (job := turns.first_late(now_ns)) is not None:
                self._leave(job, JobState.ENDED)
                expired.append(job)
        return expired

    @property
    def entries(self) -> int:
        """The number of entries of all lines, including jobs that have left."""
        return sum([len(line) for turns in self._in_order for line in turns.lines.values()])

    @property
    def remembered(self) -> int:
        """The number of models with remembered service, in the class that has most of them."""
        return max(len(turns.served_ns) for turns in self._in_order)

    def check_integrity(self) -> None:
        """Raises AssertionError if the counts and the lines disagree."""
        counted = Counter(job.model for job in self.jobs())
        assert counted == self._waiting, f"{counted} wait, {self._waiting} counted"
        assert counted.total() == self._total, f"{counted.total()} wait, {self._total} counted"
        for job_class, turns in self._turns.items():
            assert self._of_class[job_class] == sum(1 for _ in turns.waiting())
            keys = {turns.key(job): job for job in turns.waiting()}
            assert turns.first() is (keys[min(keys)] if keys else None)
            assert turns.last(None) is (keys[max(keys)] if keys else None)

    def _leave(self, job: AnyJob, state: JobState) -> None:
        job.state = state
        self._of_class[job.job_class] -= 1
        self._total -= 1
        remaining = self._waiting[job.model] - 1
        if remaining:
            self._waiting[job.model] = remaining
        else:
            del self._waiting[job.model]
        if not self._total:  # what has left is not kept in memory
            for turns in self._in_order:
                turns.clear()
