"""The records of the protocol: one named tuple per message, all fields typed.

A connection starts with ``Hello`` and ``Welcome``. Closing it releases everything that it held.

``brisk.protocol.channel`` checks values by the annotations, so they are types here, not text.
"""

from typing import NamedTuple, TypeAlias, get_args

from brisk.protocol.status import Status
from brisk.tuning import SessionTuning

PROTOCOL_VERSION = 29

DEFAULT_MAX_RUN_NS = 600_000_000_000

# The start of a connection, and the memory that goes with it.


class Hello(NamedTuple):
    """The first record on a connection, from a stub or an observer."""

    protocol: int
    version: str
    pid: int
    parent: int
    """The process number of the stub's server; 0 from an observer."""
    settings: tuple[str, ...] | None = None
    """The runtime's settings in the stub's environment, each ``NAME=value``; None from an
    observer."""


class Welcome(NamedTuple):
    """The worker's answer to a Hello of its own protocol version."""

    protocol: int
    version: str
    pid: int


class Refused(NamedTuple):
    """The worker's answer to a Hello that it refuses; it then closes the connection."""

    code: str
    message: str


class AttachSlab(NamedTuple):
    """Announces a sealed memfd, which is sent with this record; only its owner allocates in it."""

    slab: int
    size: int


class DetachSlab(NamedTuple):
    """Announces the end of a slab: its owner has released it, and no later record names it."""

    slab: int


class Region(NamedTuple):
    """A range of bytes in a slab."""

    slab: int
    offset: int
    size: int


class StateForm(NamedTuple):
    """A state that a model passes from one request of a sequence to the next, as ``output`` to
    ``input``.

    ``datatype``, ``shape`` and ``file`` describe its value for the first request.
    """

    input: str
    output: str
    datatype: str
    shape: tuple[int, ...]
    """The shape of the value, including the batch dimension, 1, if the model has one."""
    file: str
    """The path of a file with the value, laid out like a tensor in shared memory; empty for
    zeros."""


class LoadModel(NamedTuple):
    """Asks the worker for a session of one model version."""

    name: str
    version: int
    path: str
    max_batch_size: int
    """The largest batch; 0 if the model's first dimension is no batch."""
    batching: bool
    """Whether queued requests may be joined along the batch."""
    max_queue_size: int
    job_class: str
    states: tuple[StateForm, ...] = ()
    max_sequences: int = 0
    """The most sequences that Triton's scheduler keeps alive at a time."""
    sequence_idle_ns: int = 0
    """The time without a request after which Triton ends a sequence, so that its states may be
    freed."""
    tuning: SessionTuning = SessionTuning()
    mark: Region = Region(0, 0, 0)
    """A region in the stub's memory that begins with the load's mark
    (``brisk.protocol.shared_memory``)."""
    model: int = 0
    """The number that names the session in later records."""
    strikes: int = 0
    """The number of worker crashes attributed to this load."""
    max_run_ns: int = DEFAULT_MAX_RUN_NS
    """The longest time that a run may take."""
    cause: str = "entry"
    """The reason for the load, for metrics: ``entry``, ``request`` or ``restart``."""
    accuracy_ppm: int = 0
    """How many of a million early answers must be the model's own. They are learned from the
    traffic if no caches were trained; 0: only trained caches give early answers."""
    tolerance: str = ""
    """The tolerance within which values count as the model's own (``brisk.settings.tolerance``);
    empty if the model has classes."""
    smaller: str = ""
    """The name of the file of a smaller model, in the version's directory, that may answer early;
    empty: there is none."""
    needs_classes: bool = False
    """Whether early answers are learned only if the model itself says that its outputs are
    classes, by a softmax or labels: the server asks for them, and nothing in the entry says so."""
    takes_offers: bool = True
    """Whether the stub may compute the model itself, if the worker offers that (ComputeInStub)."""


class ModelLoaded(NamedTuple):
    """The worker's answer to LoadModel once the session is ready. ``load_ns``: the load's time; 0
    if the model was loaded already."""

    model: int
    load_ns: int


class LoadFailed(NamedTuple):
    model: int
    code: str
    message: str


# One inference. Request and answer consist of a form and of fields of their own. The form (names,
# datatypes, shapes) is often the same for many requests, so readers get the same object again and
# can cache what they derive from it.


class TensorForm(NamedTuple):
    """The name, type and shape of a tensor in shared memory, without its place.

    ``datatype`` is Triton's name (``FP32``, ``BF16``, ``BYTES`` …). Elements are in row-major
    order, BYTES as Triton serializes them (a 4-byte little-endian length before each element).
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


class InferForm(NamedTuple):
    """The form of a request to ``model``: all but its values."""

    model: int
    inputs: tuple[TensorForm, ...]
    outputs: tuple[str, ...]
    """The names of the requested outputs, in order."""
    job_class: str
    agreement_ppm: int | None = None
    """How many of a million early answers must be the model's own; a million: no early answers.
    None: the model's ``accuracy_ppm``, or what the caches promise if that is 0."""


class SequenceStep(NamedTuple):
    """The sequence of a request, and whether the request is its first or last."""

    sequence: str
    """The correlation id as JSON, so that 7 and "7" are two sequences, as in Triton."""
    starts: bool
    ends: bool


class Infer(NamedTuple):
    """Asks the worker to compute one request, or several joined ones that Triton handed over at
    once. Times are CLOCK_MONOTONIC."""

    request: int
    form: InferForm
    regions: tuple[Region, ...]
    """The places of the form's inputs, in their order."""
    mark: Region
    """The region that begins with the request's mark, as in LoadModel; the inputs lie behind the
    mark."""
    deadline_ns: int | None = None
    """The time after which the answer is of no use; None for no limit."""
    is_replay: bool = False
    """Whether an earlier worker had the request: it is queued whatever the queue's bound is."""
    trace_context: str = ""
    """Triton's trace context of the request; empty if Triton does not trace it."""
    arrived_ns: int = 0
    """When Triton handed the request to the stub, for traces and errors; 0 if unknown."""
    step: SequenceStep | None = None
    """The request's step in its sequence; None if the model has no states."""
    requests: int = 1
    """The number of joined requests in this record, whose inputs lie one behind the other."""


class Cancel(NamedTuple):
    """Cancels a request whose client has gone; the worker answers with a Failure as soon as it
    can."""

    request: int


class ResultForm(NamedTuple):
    """The form of an answer: all but its values."""

    outputs: tuple[TensorForm, ...]
    exits: str = ""
    """The exit that answered all rows, or what answered each row, if an exit answered any; else
    empty."""


class Result(NamedTuple):
    """The worker's successful answer to an Infer."""

    request: int
    form: ResultForm
    regions: tuple[Region, ...]
    """The places of the form's outputs, in their order, which the stub may read until it sends
    Release."""
    queue_ns: int
    execution_ns: int
    started_ns: int
    """When the first segment began, CLOCK_MONOTONIC."""


class Release(NamedTuple):
    """Releases the regions of the Result of ``request``, which the stub has copied."""

    request: int


class Failure(NamedTuple):
    request: int
    code: str
    message: str


# Small models, which their stubs compute themselves.


class ComputeInStub(NamedTuple):
    """Allows the stub to compute requests of ``model`` itself: normal ones of so few rows that a
    run takes some milliseconds. A further one changes what the first one says.

    The record is sent with a descriptor of the gate (``brisk.protocol.gate_page``).
    """

    model: int
    prepared: str
    """The path of the model's prepared form."""
    row_ns: int
    """The time of a run of one row on all processors."""
    threads: int
    """The number of threads of a run in the worker: a run in the stub may take as many."""


class ComputeNoMore(NamedTuple):
    """Withdraws ComputeInStub: the worker computes ``model`` itself again."""

    model: int


class ComputedInStub(NamedTuple):
    """Reports how many requests of ``model`` the stub has answered itself since its last such
    record."""

    model: int
    answered: int
    durations: tuple[int, ...] = ()
    """The number of these requests in each class of ``metrics.BOUNDS_NS``, by the duration of
    their run."""
    gives_up: bool = False
    """Whether the stub computes the model no more, since a run took too long."""


class Log(NamedTuple):
    """A line for Triton's log. ``level``: ``info``, ``warning`` or ``error``."""

    level: str
    text: str


# Statistics, status and traces of a worker; they only observe.


class AskStatistics(NamedTuple):
    """Asks for the worker's statistics; answered by StatisticsTold records, the last with
    ``is_last``."""

    takes_news: bool
    """Whether to report only what was not yet reported to any stub of the same server. It then
    counts as reported, and only one stub of a server gets reports: the first that asked and is
    still there. Else everything is reported, as it stands."""


class ForgetStatistics(NamedTuple):
    """Announces that the sender no longer publishes the worker's statistics: all of them go to the
    next stub that asks."""


class Sample(NamedTuple):
    """The values of one series: one, or a histogram's classes and sum. Durations are in ns."""

    metric: str
    labels: tuple[str, ...]
    values: tuple[int, ...]


class StatisticsTold(NamedTuple):
    """The statistics of a worker, or a part of them."""

    worker: str
    """The worker's role."""
    is_chosen: bool
    """Whether the receiver is the one stub of its server that gets reports; always true if it
    asked for everything."""
    samples: tuple[Sample, ...]
    is_last: bool


class AskStatus(NamedTuple):
    """Asks for the worker's current state and its last ``incidents``; answered by a Status."""

    incidents: int


class BeginTrace(NamedTuple):
    """Asks the worker to record spans from now on, at most ``telemetry.events.MAX_SPANS``."""


class AskTrace(NamedTuple):
    """Ends the recording; answered by TraceTold, the last with ``is_last``."""


class Span(NamedTuple):
    """A span of time in a trace. Times are CLOCK_MONOTONIC; texts are cut to fit a record."""

    lane: str
    """The thread or queue that the span belongs to."""
    name: str
    begin_ns: int
    end_ns: int
    request: str
    """The request or load that the span belongs to, by a name that is the same in all
    processes."""
    details: str
    """Further information, such as Triton's trace context."""


class TraceTold(NamedTuple):
    """The spans of a recording, or a part of them."""

    spans: tuple[Span, ...]
    is_last: bool


Record: TypeAlias = (
    (Hello | Welcome | Refused | AttachSlab | DetachSlab)
    | (LoadModel | ModelLoaded | LoadFailed | Log)
    | (Infer | Cancel | Result | Failure | Release)
    | (ComputeInStub | ComputeNoMore | ComputedInStub)
    | (AskStatistics | ForgetStatistics | StatisticsTold | AskStatus | Status)
    | (BeginTrace | AskTrace | TraceTold)
)

RECORD_TYPES: tuple[type, ...] = get_args(Record)
