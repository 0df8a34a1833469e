"""Requests in flight: each is admitted, answered exactly once, and has outputs kept until read.

Used by the worker's main thread.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from brisk import telemetry
from brisk.errors import (
    BriskError,
    CancelledError,
    InternalError,
    InvalidRequestError,
    ProtocolError,
    UnavailableError,
)
from brisk.protocol.records import Failure, Infer, LoadFailed, Result, ResultForm
from brisk.protocol.shared_memory import reset_mark
from brisk.runtime.memory import shortage
from brisk.runtime.models.entry import Binding
from brisk.runtime.models.sequences import OpenSequence, State
from brisk.runtime.peers.connections import Connections, Peer
from brisk.runtime.peers.tensors import write_tensors
from brisk.scheduling.job import Job, JobState, more_urgent
from brisk.scheduling.job_class import JobClass
from brisk.scheduling.queue import ReadyQueue
from brisk.scheduling.refusals import ran_out, retry_hint
from brisk.scheduling.times import ProfileTable
from brisk.segments.values import Value
from brisk.telemetry import metrics
from brisk.telemetry.events import INCIDENTS, SPANS
from brisk.telemetry.metrics import BOUNDS_NS

MAX_MESSAGE_CHARACTERS = 4096
MAX_EXITS_CHARACTERS = 1000
CANCELLED = "the client cancelled the request"

REQUESTS = "requests"
"""The trace's lane of the spans of whole requests."""


ProfileKey = tuple[str, tuple[tuple[int, ...], ...]]
"""A model, and the input shapes of a run."""


@dataclass(slots=True, eq=False)
class Request(Job):
    """A request on its way through a worker."""

    peer: Peer
    record: Infer
    binding: Binding
    mark: memoryview
    sequence: OpenSequence | None = None
    """The sequence that it is a step of; None: the model has no states."""
    is_alone: bool = False
    """Whether it runs alone, since a joined run with it failed: only the faulty one shall fail."""

    @property
    def label(self) -> str:
        """The request's name in traces, also in those of its stub."""
        return f"request {self.record.request} of process {self.peer.pid}"

    @property
    def came_ns(self) -> int:
        """When it came to its stub, and its time-out began; to this worker if that is unknown."""
        return self.record.arrived_ns or self.arrival_ns

    @property
    def rows(self) -> int:
        """Size of the batch dimension; 0 if the request has none."""
        inputs = self.record.form.inputs
        return inputs[0].shape[0] if inputs and inputs[0].shape else 0

    @property
    def profile_key(self) -> ProfileKey:
        """The key of the profile of a run of this request alone."""
        return self.binding.key, tuple(tensor.shape for tensor in self.record.form.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs that its run has to compute: the requested ones, and the next state."""
        requested = self.record.form.outputs
        if self.sequence is None:
            return requested
        return tuple(dict.fromkeys((*requested, *self.sequence.outputs.values())))

    def inputs(self) -> Mapping[str, Value]:
        """Return the values of its inputs and state. Raises as ``InputViews.read`` does."""
        values = self.peer.inputs.read(self.record)
        return values if self.sequence is None else {**values, **self.sequence.state}

    def divide(self, values: Mapping[str, Value]) -> tuple[Mapping[str, Value], State | None]:
        """Split its run's results into the requested outputs and its sequence's next state.

        The state is a copy: an answer may be a view of memory that others write to.
        """
        if self.sequence is None:
            return values, None
        state = {name: values[made].copy() for name, made in self.sequence.outputs.items()}
        return {name: values[name] for name in self.record.form.outputs}, state


class JobListener(Protocol):
    """Receives requests as they come and go, and may refuse one."""

    def check(self, job: Request) -> None:
        """Raise UnavailableError if it is known that the request cannot be in time."""

    def admitted(self, job: Request) -> None:
        """Note that a request has been taken in."""

    def ended(self, job: Request) -> None:
        """Note that an admitted request has been answered, or that its peer has gone."""


class RequestTable:
    """The requests of a worker. ``queue`` holds those that wait; each peer's ``jobs`` hold all of
    its requests in flight."""

    def __init__(
        self,
        transport: Connections,
        bound: int,
        listener: JobListener,
        profiles: ProfileTable,
    ) -> None:
        self.queue: ReadyQueue[Request] = ReadyQueue(bound)
        self._transport = transport
        self._listener = listener
        self._profiles = profiles
        self._behind: dict[int, Request] = {}
        """Requests that wait for another one of their sequence, and therefore not in the queue."""
        self._arrived = 0

    def admit(self, binding: Binding, record: Infer) -> None:
        """Queue a request, or answer at once with the reason why it may not wait."""
        try:
            self._queue(binding, record)
        except BriskError as error:
            self.turn_away(binding, record, error)

    def _queue(self, binding: Binding, record: Infer) -> None:
        peer, model = binding.peer, binding.model
        if record.request in peer.jobs:
            raise InvalidRequestError(f"request number {record.request} is in flight already")
        if (binding.sequences is None) is not (record.step is None):
            raise InvalidRequestError(
                f"model '{model.name}' has states, and a request no sequence"
            )
        self._arrived += 1
        job = Request(
            number=self._arrived,
            model=binding.key,
            job_class=JobClass(record.form.job_class),
            arrival_ns=time.monotonic_ns(),
            deadline_ns=record.deadline_ns,
            peer=peer,
            record=record,
            binding=binding,
            mark=peer.view.memory(record.mark),
            is_alone=record.is_replay,  # a crash is then attributed to no other request
        )
        if binding.sequences is not None and record.step is not None:
            most = None if record.is_replay else model.max_queue_size
            job.sequence = binding.sequences.enter(job, record.step, job.arrival_ns, most)
        if job.sequence is not None and job.sequence.line[0] is not job:
            self._behind[job.number] = job
        elif record.is_replay:
            self.queue.add(job, None, model.name)
        else:
            try:
                self._admit_new(job)
            except BaseException:
                self._leave_sequence(job)
                raise
        peer.jobs[record.request] = job
        self._listener.admitted(job)

    def _admit_new(self, job: Request) -> None:
        """Queue a job that no worker has had. Raises UnavailableError, with a hint, if full."""
        self._listener.check(job)
        model = job.binding.model
        try:
            shed = self.queue.add(job, model.max_queue_size, model.name)
        except UnavailableError as error:
            raise UnavailableError(f"{error}; {self._hint(job)}") from None
        if shed is not None:
            gone = shed.binding.model
            labels = (gone.name, str(gone.version), shed.job_class.value)
            telemetry.count(metrics.SHED, labels, shed.record.requests)
            whose = "a more urgent request"
            if not more_urgent(job, shed):
                waiting = self.queue.waiting(shed.model) + 1
                whose = f"a request of a model of which fewer wait than {waiting}"
            text = f"{whose} took its place in the queue; {self._hint(shed)}"
            self.fail(shed, UnavailableError(text))

    def _hint(self, job: Request) -> str:
        """Return the hint to retry when the waiting requests of the job's model will have run."""
        run_ns = self._profiles.run_ns(job.profile_key)
        return retry_hint(run_ns and run_ns * max(1, self.queue.waiting(job.model)))

    def _leave_sequence(self, job: Request) -> None:
        """Let the next request of the sequence go on, since the job is answered."""
        binding = job.binding
        if job.sequence is None or binding.sequences is None:
            return
        self._behind.pop(job.number, None)
        following = binding.sequences.leave(job.sequence, job, time.monotonic_ns())
        if following is not None:
            self.queue.add(self._behind.pop(following.number), None, binding.model.name)

    def _withdraw(self, job: Request) -> None:
        """Take the job out of the queue, if it is there."""
        if job.number not in self._behind:
            self.queue.withdraw(job)

    def waiting(self) -> Counter[str]:
        """Return the number of requests that wait in the queue, by model; joined ones count each
        by itself."""
        counted: Counter[str] = Counter()
        for job in self.queue.jobs():
            counted[job.model] += job.record.requests
        return counted

    def turn_away(self, binding: Binding, record: Infer, error: Exception) -> None:
        """Answer a request of a loaded or loading model that has no job."""
        binding.failed += _failures(record, error)
        self.refuse(binding.peer, record.request, error)

    def refuse(self, peer: Peer, request: int, error: Exception) -> None:
        """Answer a request that has no job; the message is cut to a bounded length."""
        code = error.code if isinstance(error, BriskError) else InternalError.code
        self._transport.send(peer, Failure(request, code, str(error)[:MAX_MESSAGE_CHARACTERS]))

    def cancel(self, peer: Peer, request: int) -> bool:
        """End a job that waits or runs. Return False if there is none, or none any more."""
        job = peer.jobs.get(request)
        if not isinstance(job, Request):
            return False
        self._withdraw(job)
        self.fail(job, CancelledError(CANCELLED))
        return True

    def expire(self) -> None:
        now_ns = time.monotonic_ns()
        for job in self.queue.expire(now_ns):  # a job behind one of these waits in the queue then
            self.fail_late(job, now_ns)
        for job in [job for job in self._behind.values() if job.is_late(now_ns)]:
            self.fail_late(job, now_ns)

    def fail_late(self, job: Request, now_ns: int) -> None:
        """Answer a job that has left the queue and whose deadline has passed."""
        assert job.deadline_ns is not None
        self.fail(job, UnavailableError(ran_out(job.came_ns, job.deadline_ns, now_ns)))

    def fail_all_late(self, jobs: Sequence[Request], started_ns: int, now_ns: int) -> None:
        """Answer the jobs of a run started at ``started_ns`` whose time is over, by their own
        time-outs or by the entry's brisk_max_run.
        """
        for job in jobs:
            most_ns = job.binding.model.max_run_ns
            if job.is_late(now_ns):
                self.fail_late(job, now_ns)
            elif now_ns - started_ns > most_ns:
                text = f"after {most_ns / 1e9:g} s, which is the entry's brisk_max_run"
                self.fail(job, InvalidRequestError(f"the run was ended {text}"))

    def succeed(
        self,
        job: Request,
        values: Mapping[str, Value],
        started_ns: int,
        finished_ns: int,
        answerers: Sequence[str] = (),
    ) -> None:
        """Answer a running job. ``answerers``: which exit or model answered each row, if any exit.

        Raises as ``write_tensors`` does, and InternalError if the answer has more outputs than a
        record holds; the job is then not answered.
        """
        peer, number = job.peer, job.record.request
        region, forms, regions = write_tensors(values, peer.arena)
        form = ResultForm(forms, exits_in_words(answerers) if answerers else "")
        timing_ns = (started_ns - job.arrival_ns, finished_ns - started_ns, started_ns)
        answered_ns = time.monotonic_ns()  # before the peer can know of it
        try:
            self._transport.send(peer, Result(number, form, regions, *timing_ns))
        except ProtocolError as error:
            if region is not None:
                peer.arena.free(region)
            raise InternalError(f"the answer cannot be sent: {error}") from error
        job.binding.answered += job.record.requests
        place = bisect_left(BOUNDS_NS, finished_ns - started_ns)
        job.binding.durations[place] += job.record.requests
        self._end(job, answered_ns)
        if region is not None:
            peer.held[number] = region

    def fail(self, job: Request, error: Exception) -> None:
        self._end(job, time.monotonic_ns())
        failed = _failures(job.record, error)
        if failed:
            job.binding.failed += failed
            INCIDENTS.note(f"request of model '{job.binding.model.name}': {error}")
        self.refuse(job.peer, job.record.request, error)

    def fail_run(self, job: Request, error: Exception) -> None:
        """Fail a job that ran alone and whose run has raised ``error``. Drop a peer that named
        memory which it does not have.
        """
        reported = error
        if job.record.requests == 1:  # of several, the stub sends each by itself: it may fit
            reported = shortage(error, f"a request of model '{job.binding.model.name}'") or error
        if not isinstance(reported, BriskError):
            reported = InternalError(f"{type(error).__name__}: {error}")
        if job.state is JobState.RUNNING:
            self.fail(job, reported)
        if isinstance(reported, ProtocolError):
            self._transport.drop(job.peer, str(reported))

    def retry(self, job: Request) -> None:
        """Queue a running job again, to run alone."""
        reset_mark(job.mark)
        job.is_alone = True
        self.queue.put_back(job)

    def release(self, peer: Peer, request: int) -> None:
        """Free the outputs of ``request``, which the peer has read."""
        region = peer.held.pop(request, None)
        if region is not None:
            peer.arena.free(region)

    def forget(self, peer: Peer) -> None:
        """End, without answers, all requests of a peer that has gone. If its process lives on, it
        finds no mark: this worker has not died."""
        for job in peer.jobs.values():
            assert isinstance(job, Request)
            reset_mark(job.mark)
            self._withdraw(job)
            self._behind.pop(job.number, None)
            job.state = JobState.ENDED
            self._listener.ended(job)
        peer.jobs.clear()

    def _end(self, job: Request, answered_ns: int) -> None:
        job.state = JobState.ENDED
        if SPANS.is_on:
            _trace_answer(job, answered_ns)
        del job.peer.jobs[job.record.request]
        self._listener.ended(job)
        self._leave_sequence(job)


def _failures(record: Infer, error: Exception) -> int:
    """Return how many requests fail with ``error``: none where a client has cancelled, or where
    the stub now sends each of several by itself (``stub.response``)."""
    if isinstance(error, CancelledError):
        return 0
    comes_apart = record.requests > 1 and not isinstance(error, UnavailableError)
    return 0 if comes_apart else record.requests


def _trace_answer(job: Request, answered_ns: int) -> None:
    """Trace a request that was answered, with a result or an error, just after ``answered_ns``."""
    model = job.binding.model
    text = f"{model.name} {model.version}, {job.job_class.value}"
    SPANS.add(REQUESTS, text, job.arrival_ns, answered_ns, job.label, job.record.trace_context)


def load_failed(model: int, error: BriskError) -> LoadFailed:
    """Return the error as a record. Its message may quote the model, so it is cut."""
    return LoadFailed(model, error.code, str(error)[:MAX_MESSAGE_CHARACTERS])


def exits_in_words(answerers: Sequence[str]) -> str:
    """Return one name for all rows, else one for each row; cut to a bounded length."""
    names = answerers[:1] if len(set(answerers)) == 1 else answerers
    text = ", ".join(names)
    if len(text) <= MAX_EXITS_CHARACTERS:
        return text
    return text[:MAX_EXITS_CHARACTERS].rsplit(", ", 1)[0] + ", …"
