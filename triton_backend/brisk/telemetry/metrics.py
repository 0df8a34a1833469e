"""The declarations of all metrics, by which they are counted, published, documented and shown.

To add a metric: declare it here, call ``telemetry.count``, ``observe`` or ``STATISTICS.hold``
where it happens, run ``tools/make-metrics-pages``. Durations are kept in ns and published in
seconds.
"""

from __future__ import annotations

from enum import Enum


class Kind(str, Enum):
    """The kind of a metric: a counter only grows, a gauge is a current value, a histogram counts
    values by size."""

    COUNTER = "counter"
    SECONDS = "counter of seconds"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


_KINDS = {
    "_seconds_total": Kind.SECONDS,
    "_total": Kind.COUNTER,
    "_seconds": Kind.HISTOGRAM,
    "_run_requests": Kind.HISTOGRAM,
    "": Kind.GAUGE,
}
"""The kinds by the end of a metric's name, after Prometheus' conventions; the first that fits."""

_BOUNDS_MS = (0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
BOUNDS_NS = tuple(int(bound * 1e6) for bound in _BOUNDS_MS)
"""The upper bounds, inclusive, of the classes of durations; one more class has no bound."""

_BOUNDS_REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128)

REQUEST_LABELS = ("model", "version", "class")
MODEL_LABELS = ("model", "version")


class Metric:
    """The only declaration of a metric; declarations are compared by identity."""

    __slots__ = ("bounds", "help", "kind", "labels", "name", "per_unit")

    def __init__(self, name: str, help: str, labels: tuple[str, ...] = ()) -> None:
        """Declare a metric. ``name``: without Prometheus' suffixes of histograms."""
        self.name = name
        self.kind = next(kind for end, kind in _KINDS.items() if name.endswith(end))
        is_time = name.endswith(("_seconds", "_seconds_total"))
        self.bounds = BOUNDS_NS if is_time else _BOUNDS_REQUESTS
        """The bounds of a histogram's classes, in the unit in which values are kept."""
        self.per_unit = 1e9 if is_time else 1
        """The number of units in which values are kept per published unit: 1e9 for durations, else
        1."""
        self.help = help
        self.labels = labels
        METRICS[name] = self


METRICS: dict[str, Metric] = {}
"""All metrics by their names."""

REQUESTS = Metric(
    "brisk_requests_total", "Requests taken from Triton, answered well or not", REQUEST_LABELS
)
ERRORS = Metric(
    "brisk_errors_total", "Requests answered with an error, by its kind", (*REQUEST_LABELS, "kind")
)
REQUEST_SECONDS = Metric(
    "brisk_request_seconds",
    "From the request's arrival in the stub to its answer, answered well only",
    REQUEST_LABELS,
)
QUEUE_SECONDS = Metric(
    "brisk_queue_seconds",
    "From the request's arrival in the worker to its first segment",
    REQUEST_LABELS,
)
EXECUTION_SECONDS = Metric(
    "brisk_execution_seconds",
    "From the request's first segment to its last, time parked for more urgent ones included",
    REQUEST_LABELS,
)
RUN_REQUESTS = Metric(
    "brisk_run_requests", "Requests that a run has computed, joined along the batch", MODEL_LABELS
)
COMPUTED_IN_STUB = Metric(
    "brisk_computed_in_stub_total",
    "Requests that the model's stub has computed itself, without a worker",
    MODEL_LABELS,
)
GIVEN_WAY = Metric(
    "brisk_stub_runs_given_way_total",
    "Runs in the model's stub that were ended for real-time work, and computed anew by a worker",
    MODEL_LABELS,
)
LOADS = Metric(
    "brisk_loads_total",
    "Loads of a model by a worker, by their cause (the entry's load, a first request, the loss of "
    "a worker) and how they ended",
    (*MODEL_LABELS, "cause", "result"),
)
LOAD_SECONDS = Metric("brisk_load_seconds", "What a model's load took in the worker", MODEL_LABELS)
STARTS = Metric(
    "brisk_cold_starts_total",
    "Sessions whose segments are all loaded: from an artefact, a sibling's, or the model",
    ("model", "version", "origin"),
)
START_SECONDS = Metric(
    "brisk_cold_start_seconds_total",
    "Time in the stages of cold starts, over all lanes",
    ("model", "version", "origin", "phase"),
)
LOADED_SEGMENTS = Metric(
    "brisk_loaded_layers_total",
    "Segments loaded in cold starts: made from the model or reused from an artefact, by a lane, "
    "or stolen from the lanes by the request that needs them",
    ("model", "version", "origin", "by"),
)
STRUCTURE_LOOKUPS = Metric(
    "brisk_structure_lookups_total",
    "Segments of cold starts that run in a session of their structure: it was there, for another "
    "model or segment, or was made",
    (*MODEL_LABELS, "result"),
)
CACHED_ROWS = Metric(
    "brisk_cached_rows_total",
    "Rows of requests to models with learned caches; early answers over it are the hit rate",
    MODEL_LABELS,
)
EARLY_ANSWERS = Metric(
    "brisk_early_answers_total",
    "Rows of requests that a learned cache answered, by its exit",
    (*MODEL_LABELS, "exit"),
)
AUDITED_ANSWERS = Metric(
    "brisk_audited_answers_total",
    "Early answers that were compared with the whole model's: it agrees, or differs",
    (*MODEL_LABELS, "exit", "verdict"),
)
SWITCHED_OFF_EXITS = Metric(
    "brisk_switched_off_exits_total",
    "Exits that answer no more: the audit found their promise broken, or they cost more than they "
    "spare",
    (*MODEL_LABELS, "exit", "reason"),
)
CACHE_VERSIONS = Metric(
    "brisk_cache_versions_total",
    "Versions of learned caches that learning from the traffic has made, by what became of them: "
    "promoted, rejected, rolled back, withdrawn",
    (*MODEL_LABELS, "change"),
)
PREEMPTIONS = Metric(
    "brisk_preemptions_total",
    "Requests that took the worker from a running one of a less urgent class",
    REQUEST_LABELS,
)
RUNS_ASIDE = Metric(
    "brisk_runs_aside_total",
    "Runs of which one segment took so long that others went on beside it",
    REQUEST_LABELS,
)
PREEMPTION_SECONDS = Metric(
    "brisk_preemption_seconds",
    "From the arrival of a request that preempts to its first segment",
    REQUEST_LABELS,
)
SHED = Metric(
    "brisk_shed_total",
    "Requests that left a full queue for one of a more urgent class, or of a model of which fewer "
    "wait",
    REQUEST_LABELS,
)
GATE_CLOSURES = Metric(
    "brisk_gate_closures_total",
    "How often real-time work came where there was none, which holds best-effort segments",
)
FREEZES = Metric(
    "brisk_besteffort_freezes_total",
    "How often a best-effort segment was stopped half-way for real-time work",
)
HELD_SECONDS = Metric(
    "brisk_besteffort_held_seconds_total",
    "Time in which best-effort work waited for real-time work by the policy",
)
PIPELINE_NODES = Metric(
    "brisk_pipeline_nodes_total",
    "Nodes of pipelines that have run, by the variant chosen and how far it ran: early or full",
    (*MODEL_LABELS, "node", "variant", "answer"),
)
PIPELINE_OBJECTIVES = Metric(
    "brisk_pipeline_objectives_total",
    "Pipeline requests that ran to their end, by their latency objective: kept or missed",
    (*MODEL_LABELS, "result"),
)
WORKER_RESTARTS = Metric(
    "brisk_worker_restarts_total", "Workers that replaced one that died", ("worker",)
)
HELD_BYTES = Metric(
    "brisk_held_bytes",
    "Bytes held: resident memory of the worker, answers not read yet, inputs of all stubs",
    ("worker", "what"),
)
MODEL_WEIGHT_BYTES = Metric(
    "brisk_model_weight_bytes",
    "Bytes of the files that a model's weights are mapped from, in a worker",
    ("worker", *MODEL_LABELS),
)
SHARED_SEGMENTS = Metric(
    "brisk_shared_segments",
    "Segments of a model that run in a session of their structure, which others may share",
    ("worker", *MODEL_LABELS),
)
LOADED_MODELS = Metric("brisk_loaded_models", "Sessions that a worker holds", ("worker",))
WAITING_REQUESTS = Metric(
    "brisk_waiting_requests", "Requests that wait in a worker's queue", ("worker",)
)
