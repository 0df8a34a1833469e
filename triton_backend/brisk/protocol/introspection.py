"""The records that tell what a worker has counted, does and did; nothing follows from them."""

from typing import NamedTuple


class AskStatistics(NamedTuple):
    """Asks what the worker has counted; answered by one or more StatisticsTold.

    ``takes_news``: only what no frontend of the same server was told before, and it counts as
    told; of a server's frontends only one is told at all, the first that asked and is still
    there. Else everything, as it stands.
    """

    takes_news: bool


class ForgetStatistics(NamedTuple):
    """What the sender was told of is shown nowhere any more: tell everything to the next one."""


class SampleRecord(NamedTuple):
    """One series of a metric, as ``telemetry.Sample`` has it; durations in ns."""

    metric: str
    labels: tuple[str, ...]
    values: tuple[int, ...]


class StatisticsTold(NamedTuple):
    """``worker``: its role. ``is_chosen``: the receiver is the one of its server that is told.

    ``is_last``: the answer is complete.
    """

    worker: str
    is_chosen: bool
    samples: tuple[SampleRecord, ...]
    is_last: bool


class AskStatus(NamedTuple):
    """Asks what the worker does just now, and for its last ``incidents``; answered by a Status."""

    incidents: int


class ExitStatus(NamedTuple):
    """A learned cache: rows it has answered, how many were audited, how many of those agree.

    ``state``: ``on``, or why it is off.
    """

    name: str
    answered: int
    audited: int
    agreed: int
    state: str


class ModelStatus(NamedTuple):
    """A session: the name it was first asked for by, and how many instances use it.

    ``waiting``: requests in the queue; ``answered``: those answered well, of its present users.
    ``exits`` of caches of ``revision``, which were offered ``offered_rows``. ``lanes`` load its
    layers just now; a pipeline has no layers of its own. ``is_settled``: no kernel of it will be
    exchanged for a better one any more. ``job_class``: its entry's. ``weight_bytes``: of the files
    that its weights are mapped from. ``failed``: requests of its present users answered with an
    error.
    """

    name: str
    version: int
    is_ready: bool
    uses: int
    waiting: int
    answered: int
    path: str
    exits: tuple[ExitStatus, ...] = ()
    revision: int = 0
    offered_rows: int = 0
    layers: int = 0
    loaded_layers: int = 0
    lanes: int = 0
    is_settled: bool = False
    job_class: str = "normal"
    weight_bytes: int = 0
    failed: int = 0


class RunStatus(NamedTuple):
    """A run of one or more joined requests. ``layers_done``: of the model's program."""

    model: str
    job_class: str
    requests: int
    is_parked: bool
    running_ns: int
    layers_done: int


class Incident(NamedTuple):
    """Something that went wrong: ``ago_ns`` before the Status, ``what`` in words."""

    ago_ns: int
    what: str


class Status(NamedTuple):
    """``models`` and ``incidents`` may be cut to what a record holds; ``model_count`` is not."""

    pid: int
    role: str
    device: str
    uptime_ns: int
    threads: int
    frontends: int
    model_count: int
    models: tuple[ModelStatus, ...]
    runs: tuple[RunStatus, ...]
    incidents: tuple[Incident, ...]


class BeginTrace(NamedTuple):
    """Asks the worker to record spans from now on; those recorded so far are forgotten.

    Until an AskTrace the worker keeps at most ``telemetry.spans.MAX_SPANS`` of them.
    """


class AskTrace(NamedTuple):
    """Ends the recording; answered by one or more TraceTold."""


class SpanRecord(NamedTuple):
    """As ``telemetry.spans.Span``; texts are cut to what a record holds."""

    lane: str
    name: str
    begin_ns: int
    end_ns: int
    request: str
    details: str


class TraceTold(NamedTuple):
    """``left_out``: how many spans found no room. ``is_last``: the answer is complete."""

    pid: int
    spans: tuple[SpanRecord, ...]
    left_out: int
    is_last: bool
