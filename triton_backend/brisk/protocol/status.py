"""What a worker tells of its state: the answer to ``AskStatus``.

Annotations are what ``brisk.protocol.channel`` checks by, so they are real types here, not text.
"""

from typing import NamedTuple


class ExitStatus(NamedTuple):
    """An exit: the rows that it has answered, how many were audited, how many of those agree."""

    name: str
    answered: int
    audited: int
    agreed: int
    state: str
    """``on``, or the reason why it is off."""


class ModelStatus(NamedTuple):
    """A session. Counts of requests are those of its present users."""

    name: str
    """The name that it was first asked for by."""
    version: int
    is_ready: bool
    uses: int
    """How many instances use it."""
    waiting: int
    """The requests in the queue."""
    answered: int
    """The requests answered well."""
    path: str
    exits: tuple[ExitStatus, ...] = ()
    revision: int = 0
    """The revision of the learned caches whose exits these are."""
    offered_rows: int = 0
    """The rows that the exits might have answered."""
    layers: int = 0
    """The model's segments; a pipeline has none of its own."""
    loaded_layers: int = 0
    """The segments that are loaded."""
    lanes: int = 0
    """The lanes that load segments just now."""
    is_settled: bool = False
    """Whether no session of it will be exchanged for a faster one any more."""
    job_class: str = "normal"
    """The entry's class."""
    weight_bytes: int = 0
    """The size of the files that the weights are mapped from."""
    failed: int = 0
    """The requests answered with an error."""
    shared_layers: int = 0
    """The segments that run in a session of their structure."""
    durations: tuple[int, ...] = ()
    """How many of the requests answered well had runs of each class of ``metrics.BOUNDS_NS``."""
    learning: str = ""
    """How far learning of early answers from the traffic is, in words."""
    arriving: str = ""
    """How far the model's bytes have come, in words, if they are on their way."""


class RunStatus(NamedTuple):
    """A run of one or more joined requests."""

    model: str
    job_class: str
    requests: int
    is_parked: bool
    running_ns: int
    layers_done: int
    """The segments that it has computed."""


class Incident(NamedTuple):
    """Something that went wrong."""

    ago_ns: int
    """The time from the incident to the Status."""
    what: str
    """The incident in words."""


class Status(NamedTuple):
    """A worker's state. ``models`` and ``incidents`` may be cut to what a record holds;
    ``model_count`` is not."""

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
