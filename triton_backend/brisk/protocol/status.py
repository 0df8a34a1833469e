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
    """The name by which the first of its current users asked for it."""
    version: int
    is_ready: bool
    uses: int
    """The number of model instances that use the session."""
    waiting: int
    """The number of requests in the queue."""
    answered: int
    """The number of requests answered without an error."""
    path: str
    exits: tuple[ExitStatus, ...] = ()
    revision: int = 0
    """The revision of the learned caches whose exits these are."""
    offered_rows: int = 0
    """The number of rows that the exits might have answered."""
    layers: int = 0
    """The number of the model's segments; a pipeline has none of its own."""
    loaded_layers: int = 0
    """The number of loaded segments."""
    lanes: int = 0
    """The number of loader threads that are loading segments now."""
    is_settled: bool = False
    """Whether no session of the model will be exchanged for a faster one any more."""
    job_class: str = "normal"
    """The entry's class."""
    weight_bytes: int = 0
    """The size of the files that the weights are mapped from."""
    failed: int = 0
    """The number of requests answered with an error."""
    shared_layers: int = 0
    """The number of segments that run in sessions shared by models of one structure."""
    durations: tuple[int, ...] = ()
    """The number of requests answered without an error in each class of ``metrics.BOUNDS_NS``, by
    the duration of their run."""
    learning: str = ""
    """The progress of learning early answers from the traffic, in words."""
    arriving: str = ""
    """The progress of the model's bytes, in words, if they are still arriving."""


class RunStatus(NamedTuple):
    """The state of a run of one or more joined requests."""

    model: str
    job_class: str
    requests: int
    is_parked: bool
    running_ns: int
    layers_done: int
    """The number of segments that the run has computed."""


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
