"""A run of one session, which computes one request or several joined along the batch dimension,
and the choice of the waiting requests that begin next.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from brisk import telemetry
from brisk.errors import InternalError, InvalidRequestError
from brisk.protocol.records import InferForm
from brisk.protocol.shared_memory import reset_mark, set_mark
from brisk.runtime.models.sequences import OpenSequence
from brisk.runtime.requests.table import Request, RequestTable
from brisk.runtime.requests.tracing import trace_run
from brisk.runtime.sessions.session import CachedRun, Due, Frame, Servable
from brisk.scheduling.job import JobState
from brisk.scheduling.job_class import JobClass
from brisk.scheduling.queue import ReadyQueue
from brisk.scheduling.times import ProfileTable, RunProfile
from brisk.segments.values import Value
from brisk.telemetry import metrics
from brisk.telemetry.events import SPANS

if TYPE_CHECKING:
    from brisk.exits.serving.frame import ExitingFrame


Leaving = tuple[Request, Mapping[str, Value], list[str]]
"""One of several jobs, whose rows are all answered; its answers; and the exit or model that
answered each row."""


@dataclass(slots=True)
class Run:
    """One frame, with the requests that it answers."""

    jobs: list[Request]
    rows: list[range]
    """Each job's rows of the batch."""
    frame: Frame
    started_ns: int
    session: Servable
    profile: RunProfile
    is_disturbed: bool
    """Whether it was parked, is narrow, or was begun while the session was loading: its duration
    says nothing about numbers of threads."""
    cached: Sequence[CachedRun] = ()
    """The runs of networks with learned caches; a pipeline adds to them as its nodes end."""
    computed_ns: int = 0
    """The time of the segments that are done."""
    is_narrow: bool = False
    """Whether it computes on one thread, concurrently with others."""

    @property
    def job_class(self) -> JobClass:
        """The class of all its jobs, which are of one class."""
        return self.jobs[0].job_class

    @property
    def model_name(self) -> str:
        return self.jobs[0].binding.model.name

    @property
    def labels(self) -> tuple[str, str, str]:
        """The model, version and class by which its metrics are counted."""
        model = self.jobs[0].binding.model
        return model.name, str(model.version), self.job_class.value

    @property
    def live(self) -> list[Request]:
        """Jobs whose clients still wait for an answer."""
        return [job for job in self.jobs if job.state is JobState.RUNNING]

    def park(self) -> None:
        """Leave the run at its segment boundary: a later crash is not attributed to it."""
        self.is_disturbed = True
        for job in self.live:
            reset_mark(job.mark)

    def resume(self) -> None:
        for job in self.live:
            set_mark(job.mark)

    def count_preemption(self) -> None:
        """Count that the run has just taken the worker from a less urgent one."""
        waited_ns = self.started_ns - self.jobs[0].arrival_ns
        telemetry.count(metrics.PREEMPTIONS, self.labels)
        telemetry.observe(metrics.PREEMPTION_SECONDS, self.labels, waited_ns)

    @property
    def requests(self) -> int:
        """The number of requests that it answers."""
        return sum(job.record.requests for job in self.jobs)

    def count(self) -> None:
        """Count the run, which is finished, and note what one request of its model takes."""
        telemetry.observe(metrics.RUN_REQUESTS, self.labels[:2], self.requests)
        if len(self.jobs) == 1:
            self.jobs[0].binding.lone_run = self.profile, self.jobs[0].rows

    def share_of(self, computed_ns: int) -> int:
        """Return the time that other runs lose by this run's computing time, ``computed_ns``."""
        return computed_ns // self.session.threads if self.is_narrow else computed_ns

    @property
    def usual_ns(self) -> float:
        """The most time that such a run usually takes; 0 if that is unknown. The profile is of
        runs on all of the session's threads."""
        run_ns = self.profile.run_ns or 0.0
        return run_ns * self.session.threads if self.is_narrow else run_ns

    @property
    def early(self) -> ExitingFrame | None:
        """The frame, if learned caches may answer; else None."""
        return self.frame.early

    @property
    def has_early_answers(self) -> bool:
        return self.early is not None and self.early.has_early_answers

    def take_leaving(self) -> list[Leaving]:
        """Return the jobs that leave the batch now, while others go on."""
        early = self.early
        if early is None or len(self.jobs) == 1 or not early.take_answers():
            return []
        leaving: list[Leaving] = []
        for job, rows in zip(self.jobs, self.rows, strict=True):
            values = early.answer_of(rows) if job.state is JobState.RUNNING else None
            if values is not None:
                leaving.append((job, values, early.answerers(rows)))
        return leaving

    def answerers(self, rows: range) -> list[str]:
        """Return which exit or model answered each of ``rows``; empty if the model alone did."""
        return [] if self.early is None else self.early.answerers(rows)

    def answer(
        self, requests: RequestTable, shares: Sequence[Mapping[str, Value]], finished_ns: int
    ) -> None:
        """Answer each job by its share of the results. Raises as ``RequestTable.succeed`` does."""
        for job, rows, share in zip(self.jobs, self.rows, shares, strict=True):
            if job.state is JobState.RUNNING:
                # The state is copied before the answer is sent, and counts after it: a request
                # that fails has not changed the state. The next request begins after this.
                values, state = job.divide(share)
                answerers = self.answerers(rows)
                requests.succeed(job, values, self.started_ns, finished_ns, answerers)
                if state is not None and job.sequence is not None:
                    job.sequence.state = state

    def split(self, results: Mapping[str, Value]) -> list[Mapping[str, Value]]:
        """Return each job's rows of the results.

        Raises InternalError if an output does not have the batch's rows: such a model must not be
        batched, although its ``max_batch_size`` allows it.
        """
        if len(self.jobs) == 1:
            return [results]
        total = self.rows[-1].stop
        for name, value in results.items():
            if not value.shape or value.shape[0] != total:
                raise InternalError(
                    f"output '{name}' has shape {list(value.shape)} for a batch of {total} rows; "
                    "a model with max_batch_size must have the batch as first dimension of every "
                    "output"
                )
        return [
            {name: value[rows.start : rows.stop] for name, value in results.items()}
            for rows in self.rows
        ]


@dataclass(slots=True, eq=False)
class RunsInProgress:
    """The runs that a worker computes. The thread that has its baton changes this; threads of
    loads read it, too."""

    leading: list[Run] = field(default_factory=list)
    """The runs of the thread that leads; the last one computes, those before it are parked at
    their segment boundaries."""
    companions: list[Run] = field(default_factory=list)
    """The runs of companions (``SideBySide``)."""
    ended_ns: int = 0
    """The time when computing last ended."""

    @property
    def has_realtime(self) -> bool:
        """Whether one that is not parked is a real-time run."""
        present = (*self.leading[-1:], *self.companions)
        return any(run.job_class is JobClass.REALTIME for run in present)

    @contextmanager
    def parked(self) -> Iterator[None]:
        """Park the leading thread's run, if any, while the context is open."""
        top = self.leading[-1:]
        for run in top:
            run.park()
        try:
            yield
        finally:
            for run in top:
                run.resume()


LONGEST_JOINED_NS = 20_000_000
"""The longest joined run while other models have requests, which wait for all of it."""

NONE_EARLY = math.inf
"""The agreement of a request that needs the model's own answer: no cache promises so much."""


def can_join(first: Request, other: Request, rows: int) -> bool:
    """Return whether ``other`` fits behind ``rows`` rows that started with ``first``.

    It needs an entry that asks for batching; the same session and class; inputs and states of the
    same names, datatypes and row shapes; the same wanted outputs and agreement; and no more rows
    than the model takes.
    """
    model, form, others = first.binding.model, first.record.form, other.record.form
    return (
        not other.is_alone
        and other.binding.model.batching
        and other.binding.session is first.binding.session
        and others.job_class == form.job_class
        and 0 < other.rows <= model.max_batch_size - rows
        and form.outputs == others.outputs
        and other.binding.model.accuracy_ppm == model.accuracy_ppm
        and form.agreement_ppm == others.agreement_ppm
        and (form is others or _row_signature(form) == _row_signature(others))
        and _state_rows(first.sequence) == _state_rows(other.sequence)
    )


def _state_rows(sequence: OpenSequence | None) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return the states and their row shapes, which may differ between requests if they vary."""
    if sequence is None:
        return []
    return [
        (name, sequence.outputs[name], value.shape[1:]) for name, value in sequence.state.items()
    ]


def _row_signature(form: InferForm) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {tensor.name: (tensor.datatype, tensor.shape[1:]) for tensor in form.inputs}


def begin_run(
    jobs: list[Request], profiles: ProfileTable, started_ns: int, *, is_narrow: bool = False
) -> Run:
    """Mark the jobs begun and make their frame.

    ``is_narrow``: use the session's narrow one, which must be there. Raises as ``Session.start``
    does; the error of an invalid request names its model.
    """
    first = jobs[0]
    session, model, form = first.binding.session, first.binding.model, first.record.form
    if session is None:
        raise InternalError(f"model '{model.name}' was unloaded under a request")
    for job in jobs:
        set_mark(job.mark)
    each = [job.inputs() for job in jobs]
    if len(jobs) == 1:
        inputs, key = each[0], first.profile_key
    else:
        inputs = {name: np.concatenate([values[name] for values in each]) for name in each[0]}
        key = first.binding.key, tuple(value.shape for value in inputs.values())
    agreement_ppm = form.agreement_ppm
    if agreement_ppm is None:
        agreement_ppm = model.accuracy_ppm or None
    agreement = None if agreement_ppm is None else agreement_ppm / 1e6
    if first.sequence is not None:
        agreement = NONE_EARLY  # caches do not compute the next state
    dues = [Due(job.arrival_ns, job.deadline_ns, job.record.requests) for job in jobs]
    try:
        if is_narrow:
            frame = session.start_narrow(inputs, first.outputs)
        else:
            frame = session.start(inputs, first.outputs, agreement, dues)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"model '{model.name}': {error}") from error
    counts = [job.rows for job in jobs]
    return Run(
        jobs,
        [range(end - count, end) for end, count in zip(accumulate(counts), counts, strict=True)],
        trace_run(jobs, frame, started_ns) if SPANS.is_on else frame,
        started_ns,
        session,
        profiles.find(key) if session.has_steady_runs else RunProfile(),
        is_disturbed=is_narrow or session.is_loading,
        cached=session.cached_runs(frame, inputs, (model.name, str(model.version)), agreement),
        is_narrow=is_narrow,
    )


def take_batch(
    queue: ReadyQueue[Request],
    profiles: ProfileTable,
    only: JobClass | None = None,
    clock_ns: Callable[[], int] = time.monotonic_ns,
) -> list[Request]:
    """Return the next job, of a class or of all, and those that are joined to it; they now run.
    Return an empty list if none waits.

    The batch has at most a power of two of rows, unless requests have several: kernels, buffers
    and measurements then exist for few batch sizes, and memory use settles. While other models of
    the class have requests, joining makes no run longer than LONGEST_JOINED_NS. Real-time jobs are
    joined only to the very next one, and only if none is late because of it.
    """
    first = queue.pop(only)
    if first is None:
        return []
    if first.is_alone or not first.binding.model.batching or first.rows < 1:
        return [first]
    jobs, rows = [first], first.rows
    most = 1 << (rows + queue.waiting(first.model)).bit_length() - 1
    is_contended = queue.is_contended(first.job_class)
    run_ns = profiles.run_ns(first.profile_key)
    row_ns = None if run_ns is None else run_ns / rows

    def accept(other: Request) -> bool:
        nonlocal rows
        if rows + other.rows > most or not can_join(first, other, rows):
            return False
        if is_contended and (row_ns is None or row_ns * (rows + other.rows) > LONGEST_JOINED_NS):
            return False
        if first.job_class is JobClass.REALTIME and not (
            queue.peek() is other and _are_in_time([*jobs, other], profiles, clock_ns())
        ):
            return False
        jobs.append(other)
        rows += other.rows
        return True

    queue.pop_companions(first, accept)
    return jobs


def _are_in_time(jobs: list[Request], profiles: ProfileTable, now_ns: int) -> bool:
    """Return whether all jobs are done by the earliest of their deadlines, which is sure if they
    would be when run one after the other. False if a deadline or a duration is unknown.
    """
    total_ns = 0.0
    for job in jobs:
        run_ns = profiles.run_ns(job.profile_key)
        if run_ns is None or job.deadline_ns is None:
            return False
        total_ns += run_ns
    return all(now_ns + total_ns <= (job.deadline_ns or 0) for job in jobs)
