"""A run of one session: one request, or several joined along the batch dimension."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from brisk import telemetry
from brisk.errors import InternalError
from brisk.protocol.identity_cache import ByIdentity
from brisk.protocol.records import Infer, InferForm
from brisk.protocol.shared_memory import request_flags
from brisk.runtime.early_exit.audits import CachedRun
from brisk.runtime.models.servable import Due, Frame, Servable
from brisk.runtime.models.session_entry import Binding
from brisk.runtime.requests.connections import Peer
from brisk.runtime.requests.sequences import OpenSequence, State, kept
from brisk.runtime.worker.tracing import trace_run
from brisk.scheduling.job import Job, JobClass, JobState
from brisk.scheduling.profile import ProfileTable, RunProfile
from brisk.segments.values import Value
from brisk.telemetry import metrics

if TYPE_CHECKING:
    from brisk.exits.serving.frame import ExitingFrame


@dataclass(frozen=True, slots=True)
class Request:
    """What a job carries: the record, where it came from, what it is asked of, and its mark.

    ``sequence``: the one that it is a step of, where the model has states.
    """

    peer: Peer
    record: Infer
    binding: Binding
    mark: memoryview
    sequence: OpenSequence | None = None

    @property
    def outputs(self) -> tuple[str, ...]:
        """What its run has to make: what is asked for, and the next state."""
        asked = self.record.form.outputs
        if self.sequence is None:
            return asked
        return tuple(dict.fromkeys((*asked, *self.sequence.outputs.values())))

    def inputs(self) -> Mapping[str, Value]:
        """Raises as ``InputViews.read`` does."""
        values = self.peer.inputs.read(self.record)
        return values if self.sequence is None else {**values, **self.sequence.state}

    def divide(self, values: Mapping[str, Value]) -> tuple[Mapping[str, Value], State | None]:
        """What its run has made: what is asked for, and its sequence's next state, a copy."""
        if self.sequence is None:
            return values, None
        state = {name: kept(values[output]) for name, output in self.sequence.outputs.items()}
        return {name: values[name] for name in self.record.form.outputs}, state


RequestJob = Job[Request]
Shapes: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class Run:
    """``rows`` is each job's share of the batch dimension; ``shapes`` are the inputs', joined.

    ``early``: the frame, where caches may answer. ``layers_ns``: of each layer that is done, as it
    would take alone, where best-effort work gives way.
    """

    jobs: list[RequestJob]
    rows: list[int]
    frame: Frame
    started_ns: int
    session: Servable
    shapes: Shapes
    profile: RunProfile
    is_disturbed: bool
    """Parked, or begun while the session was loading: its time says nothing about threads."""
    early: ExitingFrame | None = None
    cached: Sequence[CachedRun] = ()
    """Its runs of networks with learned caches; a pipeline adds to them as its nodes end."""
    layers_ns: list[int] = field(default_factory=list)

    @property
    def threads(self) -> int:
        """How many compute it."""
        return self.session.threads

    @property
    def job_class(self) -> JobClass:
        """All its jobs are of one class."""
        return self.jobs[0].job_class

    @property
    def is_wanted(self) -> bool:
        """Whether anybody still waits for an answer of it."""
        return any(job.state is not JobState.ENDED for job in self.jobs)

    def park(self) -> None:
        """Leave it at its layer boundary: it is not to blame for a worker's death meanwhile."""
        self.is_disturbed = True
        for job in self._live():
            request_flags.reset(job.payload.mark)

    def resume(self) -> None:
        for job in self._live():
            request_flags.begin(job.payload.mark)

    def count_preemption(self) -> None:
        """It has just taken the worker from a less urgent one."""
        job = self.jobs[0]
        model = job.payload.binding.model
        labels = (model.name, str(model.version), job.job_class.value)
        telemetry.count(metrics.PREEMPTIONS, labels)
        telemetry.observe_ns(metrics.PREEMPTION_SECONDS, labels, self.started_ns - job.arrival_ns)

    @property
    def has_early_answers(self) -> bool:
        """Whether a cache has answered a row of it."""
        return self.early is not None and self.early.has_early_answers

    def answered_jobs(self) -> list[tuple[RequestJob, Mapping[str, Value], list[str]]]:
        """Jobs of several whose rows are all answered while others' are not.

        With the answers, and who answered each row.
        """
        early = self.early
        if early is None or len(self.jobs) == 1 or not early.take_answers():
            return []
        found: list[tuple[RequestJob, Mapping[str, Value], list[str]]] = []
        for job, rows in zip(self.jobs, self._rows_by_job(), strict=True):
            values: Any = early.answer_of(rows) if job.state is JobState.RUNNING else None
            if values is not None:
                found.append((job, values, early.answerers(rows)))
        return found

    def answerers(self) -> list[list[str]]:
        """Who answered each row, by jobs; nothing where it was the model alone."""
        if self.early is None:
            return [[] for _ in self.jobs]
        return [self.early.answerers(rows) for rows in self._rows_by_job()]

    def _rows_by_job(self) -> list[range]:
        """Which of the run's rows are each job's."""
        ends = list(accumulate(self.rows))
        return [range(end - rows, end) for end, rows in zip(ends, self.rows, strict=True)]

    def _live(self) -> list[RequestJob]:
        return [job for job in self.jobs if job.state is JobState.RUNNING]


NONE_EARLY = math.inf
"""The agreement of a request whose answer shall be the model's own: no cache promises it."""

_shapes_of = ByIdentity[InferForm, Shapes](
    lambda form: tuple(tensor.shape for tensor in form.inputs)
)


def profile_key(request: Request, shapes: Shapes | None = None) -> tuple[str, Shapes]:
    """Names the profile of a run of ``request``, or of one of these ``shapes``."""
    return request.binding.key, _shapes_of(request.record.form) if shapes is None else shapes


def batch_rows(request: Request) -> int:
    """Size of the batch dimension; 0 where the request has none."""
    shapes = _shapes_of(request.record.form)
    return shapes[0][0] if shapes and shapes[0] else 0


def can_join(first: Request, other: Request, rows: int) -> bool:
    """Whether ``other`` fits behind ``rows`` rows that started with ``first``.

    Same session and class, inputs and states of the same names, datatypes and row shapes, the
    same outputs and agreement wanted, and no more rows than the model takes.
    """
    model, form, others = first.binding.model, first.record.form, other.record.form
    return (
        other.binding.session is first.binding.session
        and model.batching
        and others.job_class == form.job_class
        and rows > 0
        and 0 < batch_rows(other) <= model.max_batch_size - rows
        and form.outputs == others.outputs
        and form.agreement_ppm == others.agreement_ppm
        and (form is others or _row_signature(form) == _row_signature(others))
        and _state_rows(first.sequence) == _state_rows(other.sequence)
    )


def _state_rows(sequence: OpenSequence | None) -> list[tuple[str, str, tuple[int, ...]]]:
    """The states and the shapes of their rows: one that varies may differ from its neighbour's."""
    if sequence is None:
        return []
    return [
        (name, sequence.outputs[name], tuple(getattr(value, "shape", ()))[1:])
        for name, value in sequence.state.items()
    ]


def _row_signature(form: InferForm) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {tensor.name: (tensor.datatype, tensor.shape[1:]) for tensor in form.inputs}


def begin_run(jobs: list[RequestJob], profiles: ProfileTable, started_ns: int) -> Run:
    """Mark the jobs begun and make their frame; raises as ``Session.start`` does."""
    first = jobs[0].payload
    session = first.binding.session
    if session is None:
        raise InternalError(f"model '{first.binding.model.name}' was unloaded under a request")
    for job in jobs:
        request_flags.begin(job.payload.mark)
    inputs = [job.payload.inputs() for job in jobs]
    rows = [batch_rows(job.payload) for job in jobs]
    if len(jobs) == 1:
        joined, shapes = inputs[0], _shapes_of(first.record.form)
    else:
        joined = _join(inputs)
        shapes = tuple(tuple(getattr(value, "shape", ())) for value in joined.values())
    frame = _start(session, joined, jobs)
    model = first.binding.model
    cached = session.cached_runs(frame, joined, (model.name, str(model.version)))
    early = cast("ExitingFrame", frame) if frame.can_answer_early else None
    return Run(
        jobs,
        rows,
        trace_run(jobs, frame, started_ns),
        started_ns,
        session,
        shapes,
        _profile(session, profiles, profile_key(first, shapes)),
        is_disturbed=session.is_loading,
        early=early,
        cached=cached,
    )


def _profile(session: Servable, profiles: ProfileTable, key: tuple[str, Shapes]) -> RunProfile:
    return profiles.find(key) if session.has_steady_runs else RunProfile()


def _start(session: Servable, inputs: Mapping[str, Value], jobs: Sequence[RequestJob]) -> Frame:
    """A frame for all ``jobs``.

    Learned caches never answer early where there is a state: they know nothing of the next one.
    """
    form, outputs = jobs[0].payload.record.form, jobs[0].payload.outputs
    agreement = None if form.agreement_ppm is None else form.agreement_ppm / 1e6
    if jobs[0].payload.sequence is not None:
        agreement = NONE_EARLY
    dues = [Due(job.arrival_ns, job.deadline_ns) for job in jobs]
    return session.start_run(inputs, outputs, dues, agreement)


def _join(inputs: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    joined: dict[str, Value] = {}
    for name in inputs[0]:
        parts = [values[name] for values in inputs]
        joined[name] = np.concatenate(parts)
    return joined


def split_results(run: Run, results: Mapping[str, Value]) -> list[dict[str, Value]]:
    """Each job's rows of the results.

    Raises InternalError where an output has not the batch's rows: such a model must not be
    batched, which its ``max_batch_size`` claims.
    """
    if len(run.jobs) == 1:
        return [dict(results)]
    total = sum(run.rows)
    shares: list[dict[str, Value]] = [{} for _ in run.jobs]
    for name, value in results.items():
        shape = getattr(value, "shape", ())
        if not shape or shape[0] != total:
            raise InternalError(
                f"output '{name}' has shape {list(shape)} for a batch of {total} rows; a model "
                "with max_batch_size must have the batch as first dimension of every output"
            )
        start = 0
        for share, rows in zip(shares, run.rows, strict=True):
            share[name] = value[start : start + rows]
            start += rows
    return shares
