"""The records of the protocol: one named tuple per message, all fields typed.

A connection starts with ``Hello`` and ``Welcome``. Closing it gives back everything it held.

Annotations are what ``brisk.protocol.channel`` checks by, so they are real types here, not text.
"""

from typing import NamedTuple, TypeAlias, get_args

from brisk.protocol.status import Status
from brisk.tuning import SessionTuning

PROTOCOL_VERSION = 22

DEFAULT_MAX_RUN_NS = 600_000_000_000

# The start of a connection, and the memory that goes with it.


class Hello(NamedTuple):
    """A stub's first record. ``parent``: the process number of its server, 0 from who only looks.
    ``settings``: what its environment says to a runtime; None where that was said before.
    """

    protocol: int
    version: str
    pid: int
    parent: int
    settings: tuple[str, ...] | None = None


class Welcome(NamedTuple):
    """The worker's answer to a Hello of its own protocol version."""

    protocol: int
    version: str
    pid: int


class Refused(NamedTuple):
    """The worker's answer to a Hello it cannot serve; the connection closes after it."""

    code: str
    message: str


class AttachSlab(NamedTuple):
    """Announces a sealed memfd, sent beside this record; its owner alone allocates in it."""

    slab: int
    size: int


class DetachSlab(NamedTuple):
    """The owner has given the slab up; no record will name it again."""

    slab: int


class Region(NamedTuple):
    """A stretch of a slab, in bytes."""

    slab: int
    offset: int
    size: int


class StateForm(NamedTuple):
    """What a model hands on from one request of a sequence to the next: ``output`` to ``input``.

    ``datatype``, ``shape`` (with the batch dimension, 1, where the model has one) and ``file`` are
    of the first request's: its value as a tensor lies in shared memory; empty: zeros.
    """

    input: str
    output: str
    datatype: str
    shape: tuple[int, ...]
    file: str


class LoadModel(NamedTuple):
    """Asks for a session of one model version; ``model`` names it in later records.

    ``max_batch_size`` 0: the model's first dimension is no batch. ``batching``: queued requests
    may be joined along it. ``states``: kept for up to ``max_sequences`` sequences, each until it
    has been idle for ``sequence_idle_ns``. ``mark``: a region of the stub's that begins with
    its mark (``brisk.protocol.shared_memory``). ``strikes``: workers that its load has ended.
    ``max_run_ns``: what a run may take. ``cause``: why it is to be loaded, for metrics.
    ``accuracy_ppm``: how many of a million early answers must be the model's own, which are
    learned from the traffic where no caches were trained; 0: trained caches alone give them.
    ``tolerance``: which values count as the model's own (``brisk.settings.tolerance``); empty: it
    has classes.
    """

    name: str
    version: int
    path: str
    max_batch_size: int
    batching: bool
    max_queue_size: int
    job_class: str
    states: tuple[StateForm, ...] = ()
    max_sequences: int = 0
    sequence_idle_ns: int = 0
    tuning: SessionTuning = SessionTuning()
    mark: Region = Region(0, 0, 0)
    model: int = 0
    strikes: int = 0
    max_run_ns: int = DEFAULT_MAX_RUN_NS
    cause: str = "entry"
    accuracy_ppm: int = 0
    tolerance: str = ""


class ModelLoaded(NamedTuple):
    """The session is ready. ``load_ns`` is what the load took; 0 if it was loaded already."""

    model: int
    load_ns: int


class LoadFailed(NamedTuple):
    model: int
    code: str
    message: str


# One inference. Request and answer are made of a form and of what is this one's own. The form
# (names, datatypes, shapes) is the same for one request after the other, so whoever reads it meets
# the same object again and can keep what follows from it.


class TensorForm(NamedTuple):
    """A tensor in shared memory, wherever it lies.

    ``datatype`` is Triton's name (``FP32``, ``BF16``, ``BYTES`` …); elements lie in row-major
    order, BYTES as Triton serialises them (4-byte little-endian length before each element).
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


class InferForm(NamedTuple):
    """What is asked of ``model``, apart from the values. ``outputs``: names wanted, in order.

    ``agreement_ppm``: of a million early answers of learned caches, how many must be the model's
    own; None: as promised, a million: no early answers.
    """

    model: int
    inputs: tuple[TensorForm, ...]
    outputs: tuple[str, ...]
    job_class: str
    agreement_ppm: int | None = None


class SequenceStep(NamedTuple):
    """Which sequence a request belongs to, and whether it is the first or the last of it.

    ``sequence``: the correlation id as JSON, so that 7 and "7" are two sequences, as in Triton.
    """

    sequence: str
    starts: bool
    ends: bool


class Infer(NamedTuple):
    """One request, or ``requests`` of a model's that Triton handed over at once, whose inputs lie
    one behind the other. ``regions``: of the form's inputs, in their order. Times are
    CLOCK_MONOTONIC.

    ``mark``: as in LoadModel; the stub has the inputs behind it. ``deadline_ns``: afterwards
    the answer is of no use; None: no limit. ``is_replay``: an earlier worker had it; it waits
    again whatever the queue's bound is. ``trace_context``: Triton's, where it traces the request;
    else empty. ``arrived_ns``: when Triton handed it to the stub, for whoever records a
    trace; 0: unknown. ``step``: of a model with states, whose they are; None for any other.
    """

    request: int
    form: InferForm
    regions: tuple[Region, ...]
    mark: Region
    deadline_ns: int | None = None
    is_replay: bool = False
    trace_context: str = ""
    arrived_ns: int = 0
    step: SequenceStep | None = None
    requests: int = 1


class Cancel(NamedTuple):
    """The client has gone; the worker answers with a Failure as soon as it can."""

    request: int


class ResultForm(NamedTuple):
    """``exits``: who answered, row by row, where a learned cache answered any; else empty."""

    outputs: tuple[TensorForm, ...]
    exits: str = ""


class Result(NamedTuple):
    """The answer. Its regions, of the form's outputs in their order, stay the stub's to read
    until it sends Release. ``started_ns``: of its first segment, CLOCK_MONOTONIC.
    """

    request: int
    form: ResultForm
    regions: tuple[Region, ...]
    queue_ns: int
    execution_ns: int
    started_ns: int


class Release(NamedTuple):
    """The stub has copied the Result of ``request``; its regions are free again."""

    request: int


class Failure(NamedTuple):
    request: int
    code: str
    message: str


# Small models, which their stubs compute themselves.


class ComputeInStub(NamedTuple):
    """The stub may compute requests of ``model`` itself, from now on: normal ones, of so many rows
    that a run takes a millisecond or two.

    ``prepared``: the path of its prepared form. ``row_ns``: what a run of a row takes. Sent with a
    descriptor of the gate, a page that begins with the number of real-time requests in flight.
    """

    model: int
    prepared: str
    row_ns: int


class ComputeNoMore(NamedTuple):
    """The worker computes ``model`` itself again."""

    model: int


class ComputedInStub(NamedTuple):
    """How many requests of ``model`` the stub has answered itself since it said so last.

    ``durations``: of their runs, how many in each class (``metrics.BOUNDS_NS``).
    """

    model: int
    answered: int
    durations: tuple[int, ...] = ()


class Log(NamedTuple):
    """A line for Triton's log. ``level``: ``info``, ``warning`` or ``error``."""

    level: str
    text: str


# What a worker has counted, does and did; nothing follows from these.


class AskStatistics(NamedTuple):
    """Asks what the worker has counted; answered by StatisticsTold, the last with ``is_last``.

    ``takes_news``: only what no stub of the same server was told before, and it counts as
    told; of a server's stubs only one is told at all, the first that asked and is still
    there. Else everything, as it stands.
    """

    takes_news: bool


class ForgetStatistics(NamedTuple):
    """What the sender was told of is shown nowhere any more: tell everything to the next one."""


class Sample(NamedTuple):
    """The values of one series: one, or a histogram's classes and sum. Durations are in ns."""

    metric: str
    labels: tuple[str, ...]
    values: tuple[int, ...]


class StatisticsTold(NamedTuple):
    """``worker``: its role. ``is_chosen``: the receiver is the one of its server that is told."""

    worker: str
    is_chosen: bool
    samples: tuple[Sample, ...]
    is_last: bool


class AskStatus(NamedTuple):
    """Asks what the worker does just now, and for its last ``incidents``; answered by a Status."""

    incidents: int


class BeginTrace(NamedTuple):
    """Asks the worker to record spans from now on, at most ``telemetry.events.MAX_SPANS``."""


class AskTrace(NamedTuple):
    """Ends the recording; answered by TraceTold, the last with ``is_last``."""


class Span(NamedTuple):
    """``lane``: the thread or queue it lay in. Times are CLOCK_MONOTONIC.

    ``request`` names the request or load it belongs to, the same in all processes. ``details``:
    whatever else is worth reading, Triton's trace context for instance. On the way, texts are cut
    to what a record holds.
    """

    lane: str
    name: str
    begin_ns: int
    end_ns: int
    request: str
    details: str


class TraceTold(NamedTuple):
    """``left_out``: how many spans found no room."""

    pid: int
    spans: tuple[Span, ...]
    left_out: int
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
