"""The metrics, each declared once: what is counted, published, documented and shown.

To add one: declare it here, call ``telemetry.count``, ``observe_ns`` or ``hold`` where it happens,
run ``tools/make-metrics-pages``. Durations are kept in ns and published in seconds.
"""

from __future__ import annotations

from enum import Enum

from brisk.errors import InternalError


class Kind(str, Enum):
    """A counter only grows; a gauge is what holds now; a histogram counts durations by size."""

    COUNTER = "counter"
    SECONDS = "counter of seconds"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


BOUNDS_NS = tuple(
    int(seconds * 1e9)
    for seconds in (
        *(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
        *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
    )
)
"""Upper bounds, inclusive, of all histograms' classes; one more class has no bound."""

REQUEST_LABELS = ("model", "version", "class")
MODEL_LABELS = ("model", "version")


class Metric:
    """``name`` without Prometheus' suffixes of histograms. Compared by identity: there is one."""

    __slots__ = ("help", "kind", "labels", "name")

    def __init__(self, name: str, kind: Kind, help: str, labels: tuple[str, ...] = ()) -> None:
        self.name = name
        self.kind = kind
        self.help = help
        self.labels = labels

    def check(self, labels: tuple[str, ...]) -> None:
        """InternalError where ``labels`` are not one value for each label name."""
        if len(labels) != len(self.labels):
            raise InternalError(f"metric {self.name} has labels {self.labels}, got {labels!r:.80}")


METRICS: dict[str, Metric] = {}
"""Every metric by its name."""


def _declare(name: str, kind: Kind, help: str, labels: tuple[str, ...] = ()) -> Metric:
    metric = METRICS[name] = Metric(name, kind, help, labels)
    return metric


REQUESTS = _declare(
    "brisk_requests_total",
    Kind.COUNTER,
    "Requests taken from Triton, answered well or not",
    REQUEST_LABELS,
)
ERRORS = _declare(
    "brisk_errors_total",
    Kind.COUNTER,
    "Requests answered with an error, by its kind",
    (*REQUEST_LABELS, "kind"),
)
REQUEST_SECONDS = _declare(
    "brisk_request_seconds",
    Kind.HISTOGRAM,
    "From the request's arrival in the frontend to its answer, answered well only",
    REQUEST_LABELS,
)
QUEUE_SECONDS = _declare(
    "brisk_queue_seconds",
    Kind.HISTOGRAM,
    "From the request's arrival in the worker to its first layer",
    REQUEST_LABELS,
)
EXECUTION_SECONDS = _declare(
    "brisk_execution_seconds",
    Kind.HISTOGRAM,
    "From the request's first layer to its last, time parked for more urgent ones included",
    REQUEST_LABELS,
)
LOADS = _declare(
    "brisk_loads_total",
    Kind.COUNTER,
    "Loads of a model by a worker, restarts of workers included, by how they ended",
    (*MODEL_LABELS, "result"),
)
LOAD_SECONDS = _declare(
    "brisk_load_seconds", Kind.HISTOGRAM, "What a model's load took in the worker", MODEL_LABELS
)
STARTS = _declare(
    "brisk_cold_starts_total",
    Kind.COUNTER,
    "Sessions whose layers are all loaded, from an artefact or from the model",
    ("model", "version", "origin"),
)
START_SECONDS = _declare(
    "brisk_cold_start_seconds_total",
    Kind.SECONDS,
    "Time in the stages of cold starts, over all lanes",
    ("model", "version", "origin", "phase"),
)
LOADED_LAYERS = _declare(
    "brisk_loaded_layers_total",
    Kind.COUNTER,
    "Solutions loaded in cold starts: made from the model or reused from an artefact, by a lane, "
    "or stolen from the lanes by the request that needs them",
    ("model", "version", "origin", "by"),
)
CACHED_ROWS = _declare(
    "brisk_cached_rows_total",
    Kind.COUNTER,
    "Rows of requests to models with learned caches; early answers over it are the hit rate",
    MODEL_LABELS,
)
EARLY_ANSWERS = _declare(
    "brisk_early_answers_total",
    Kind.COUNTER,
    "Rows of requests that a learned cache answered, by its exit",
    (*MODEL_LABELS, "exit"),
)
AUDITED_ANSWERS = _declare(
    "brisk_audited_answers_total",
    Kind.COUNTER,
    "Early answers that were compared with the whole model's: it agrees, or differs",
    (*MODEL_LABELS, "exit", "verdict"),
)
SWITCHED_OFF_EXITS = _declare(
    "brisk_switched_off_exits_total",
    Kind.COUNTER,
    "Exits that answer no more: the audit found their promise broken, or they cost more than they "
    "spare",
    (*MODEL_LABELS, "exit", "reason"),
)
CACHE_VERSIONS = _declare(
    "brisk_cache_versions_total",
    Kind.COUNTER,
    "Versions of learned caches that learning from the traffic has made, by what became of them: "
    "promoted, rejected, rolled back, withdrawn",
    (*MODEL_LABELS, "change"),
)
PREEMPTIONS = _declare(
    "brisk_preemptions_total",
    Kind.COUNTER,
    "Requests that took the worker from a running one of a less urgent class",
    REQUEST_LABELS,
)
PREEMPTION_SECONDS = _declare(
    "brisk_preemption_seconds",
    Kind.HISTOGRAM,
    "From the arrival of a request that preempts to its first layer",
    REQUEST_LABELS,
)
SHED = _declare(
    "brisk_shed_total",
    Kind.COUNTER,
    "Requests that left a full queue for one of a more urgent class",
    REQUEST_LABELS,
)
GATE_CLOSURES = _declare(
    "brisk_gate_closures_total",
    Kind.COUNTER,
    "How often real-time work came where there was none, which holds best-effort layers",
)
FREEZES = _declare(
    "brisk_besteffort_freezes_total",
    Kind.COUNTER,
    "How often a best-effort layer was stopped half-way for real-time work",
)
HELD_SECONDS = _declare(
    "brisk_besteffort_held_seconds_total",
    Kind.SECONDS,
    "Time in which best-effort work waited for real-time work by the policy",
)
PIPELINE_NODES = _declare(
    "brisk_pipeline_nodes_total",
    Kind.COUNTER,
    "Nodes of pipelines that have run, by the variant chosen and how far it ran: early or full",
    (*MODEL_LABELS, "node", "variant", "answer"),
)
PIPELINE_OBJECTIVES = _declare(
    "brisk_pipeline_objectives_total",
    Kind.COUNTER,
    "Pipeline requests that ran to their end, by their latency objective: kept or missed",
    (*MODEL_LABELS, "result"),
)
WORKER_RESTARTS = _declare(
    "brisk_worker_restarts_total",
    Kind.COUNTER,
    "Workers that replaced one that died",
    ("worker",),
)
HELD_BYTES = _declare(
    "brisk_held_bytes",
    Kind.GAUGE,
    "Bytes held: resident memory of the worker, answers not read yet, inputs of all frontends",
    ("worker", "what"),
)
LOADED_MODELS = _declare(
    "brisk_loaded_models", Kind.GAUGE, "Sessions that a worker holds", ("worker",)
)
WAITING_REQUESTS = _declare(
    "brisk_waiting_requests", Kind.GAUGE, "Requests that wait in a worker's queue", ("worker",)
)
