"""The report of a worker's state: the answer to ``AskStatus``.

``brisk.protocol.channel`` checks values by the annotations, so they are types here, not text.
"""

from typing import NamedTuple


class ExitStatus(NamedTuple):
    """An exit's counts: rows answered, of these audited, and of these in agreement."""

    name: str
    answered: int
    audited: int
    agreed: int
    state: str
    """``on``, or the reason why it is off."""


class ModelStatus(NamedTuple):
    """The state of a session. Counts of requests are those of its current users."""

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
    """The state of a run of one or more joined requests."""

    model: str
    job_class: str
    requests: int
    is_parked: bool
    running_ns: int
    layers_done: int
    """The segments that it has computed."""


class Incident(NamedTuple):
    """A failure that the worker has noted."""

    ago_ns: int
    """The time from the incident to the Status."""
    what: str
    """The incident in words."""


class Status(NamedTuple):
    """A worker's state. ``models`` and ``incidents`` may be cut to fit a record; ``model_count``
    counts all models."""

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
