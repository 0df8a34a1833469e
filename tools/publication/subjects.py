"""The published pages: the runs that each shows, their titles, and the columns of their rows.

A run is a file of docs/benchmarks/data. One that no page shows has a line in the index only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from publication.runs import PublishedRun


@dataclass(frozen=True, slots=True)
class Part:
    """Runs of a page.

    ``file``: the pattern of their files' names; a * is the part in which several differ.
    ``title``: of each, with that part in place of {}.
    ``columns``: of the rows; empty: all.
    ``split``: a column with a table for each of its values.
    """

    file: str
    title: str = ""
    columns: tuple[str, ...] = ()
    split: str = ""

    def title_of(self, file: str) -> str:
        before, _, after = self.file.partition("*")
        return self.title.format(file.removeprefix(before).removesuffix(after))


@dataclass(frozen=True, slots=True)
class Page:
    """A page. ``name``: of its file, without ``.md``."""

    name: str
    title: str
    about: str
    parts: tuple[Part, ...]

    def part_of(self, file: str) -> Part | None:
        return next((part for part in self.parts if fnmatchcase(file, part.file)), None)

    def runs(self, runs: Mapping[str, PublishedRun]) -> Iterator[tuple[Part, PublishedRun]]:
        """Yield the runs that it shows, in the order of its parts."""
        for part in self.parts:
            for file, run in runs.items():
                if self.part_of(file) is part:
                    yield part, run


_WARM = (
    *("model", "engine", "path", "median_ms", "spread_ms", "processor_ms"),
    *("ratio_to_onnxruntime", "more_us", "runs"),
)
_DISB = (
    *("workload", "round", "quiet", "side", "mean_ms", "p50_ms", "p99_ms", "mean_ratio"),
    *("p99_ratio", "throughput_ratio", "per_s", "best_effort_per_s", "failed", "dropped"),
    "missed_percent",
)
_COLD = (
    *("part", "model", "batch", "engine", "first_ms", "spread_ms", "second_ms"),
    *("warm_ms", "first_over_warm", "speedup", "samples"),
)
_SERVED = (
    *("model", "batch", "engine", "ready_ms", "first_ms", "spread_ms", "stub_ms"),
    *("parse_ms", "load_ms", "run_ms", "beside_ms", "second_ms", "answer_2_ms", "answer_5_ms"),
    *("answer_10_ms", "answer_20_ms", "over_brisk", "samples"),
)
_THROUGHPUT = (
    *("model", "batching", "transport", "clients", "load", "side", "setting", "per_s"),
    *("least_per_s", "most_per_s", "p50_ms", "p99_ms", "tritonserver_us", "stub_us", "runtime_us"),
    *("us", "mib"),
)

PAGES = (
    Page(
        "warm-real",
        "Warm inference of real models",
        "Time of an inference of loaded models, engines in turns, in process and through Triton, "
        "with the number of threads that users get by default.",
        (Part("warm-real", columns=_WARM),),
    ),
    Page(
        "cold-process",
        "Cold start in process",
        "From the load call to the first answer in a fresh process with the page cache hot.",
        (Part("cold-process", columns=_COLD, split="part"),),
    ),
    Page(
        "cold-served",
        "Cold start through Triton",
        "From the load call on a running server to the first answer, beside Python backends.",
        (Part("cold-served", columns=_SERVED),),
    ),
    Page(
        "start",
        "Start of a server",
        "From `exec` of the server to its first answer.",
        (Part("start"),),
    ),
    Page(
        "density",
        "Many models on one server",
        "Memory, start and answers of a server with many small models, copies of one and "
        "different ones, and memory of a runtime without any.",
        (Part("density", split="part"),),
    ),
    Page(
        "preempt-workloads",
        "Priorities: DISB's workloads",
        "REEF's workloads of real-time and best-effort clients, and a trace of real-time "
        "requests, through real servers.",
        (Part("preempt-workloads-*", "workload {}", _DISB, "stage"),),
    ),
    Page(
        "preempt-latency",
        "Priorities: latency of preemption",
        "From sending a real-time request to its first segment.",
        (
            Part("preempt-layers", "beside layers of 1 to 300 ms"),
            Part("preempt-parts", "network by network", split="figure"),
        ),
    ),
    Page(
        "exits",
        "Early exits",
        "Learned caches against the same model without, in process, sides in turns; whether what "
        "they promise is kept, split after split; and caches that are trained again from a stream "
        "of requests, against those that stay as they are.",
        (
            Part("exits-fashion", "Fashion-MNIST"),
            Part("exits-promise", "the promise"),
            Part("exits-streams", "Zipf streams"),
            Part("exits-video", "a fixed camera"),
        ),
    ),
    Page(
        "throughput",
        "Throughput of small models",
        "Answers a second of a server, and what each costs it, beside Triton's Python backend "
        "with ONNX Runtime in `model.py`, sides in turns.",
        (Part("throughput-*", "{}", _THROUGHPUT, "batching"),),
    ),
    Page(
        "soak",
        "Soak and pressure",
        "Many clients for long beside loads, killed workers, damaged artefacts and full disks; "
        "and as many as there is room for at once.",
        (Part("soak", "soak", split="kind"), Part("pressure", "pressure", split="kind")),
    ),
)
"""The pages, in the order of the index."""

OTHERS = {
    "warm-1": "Warm inference of sample models, one thread",
    "warm-2": "Warm inference of sample models, two threads",
    "warm-real-models": "Warm inference of further models",
    "start-reported": "Start of a server",
    "load_beside": "Loads beside a real-time model",
    "siblings": "The next version of a model beside a warm first one",
    "sourcing": "Hosts: where a model's bytes are, and what of it travels",
    "streamed": "Hosts: models that start while they arrive",
    "streamed-models": "Hosts: further models that start while they arrive",
    "chain": "Hosts: one sender and several receivers",
    "hop": "Stub to worker and back",
    "entries": "A thousand models that come and go",
    "preempt-equality": "Priorities: answers of interrupted runs",
    "preempt-pairs": "Priorities: pairs of networks",
    "exits-served": "Early exits: through Triton",
    "exits-variants": "Early exits: variants and compositions",
    "pipeline": "Pipelines: planner against planner",
    "conformance": "Conformance: the ONNX project's own node cases",
}
"""Titles of the runs that no page shows, by their files."""


def page_of(file: str) -> Page | None:
    """Return the page that shows a run; None if there is none."""
    return next((page for page in PAGES if page.part_of(file) is not None), None)
