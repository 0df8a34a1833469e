"""What a worker tells of its state: the answer to ``AskStatus``.

Annotations are what ``brisk.protocol.channel`` checks by, so they are real types here, not text.
"""

from typing import NamedTuple


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
    error. ``shared_layers``: those that run in a session of their structure. ``durations``: of
    the runs of those answered well, how many requests in each class (``metrics.BOUNDS_NS``).
    ``learning``: in words how far learning of early answers from the traffic is. ``arriving``: in
    words how far the model's bytes have come, if they are on their way.
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
    shared_layers: int = 0
    durations: tuple[int, ...] = ()
    learning: str = ""
    arriving: str = ""


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
