"""What each published benchmark is, and which columns of its rows its page shows."""

from __future__ import annotations

from dataclasses import dataclass

from publication.runs import PublishedRun


@dataclass(frozen=True, slots=True)
class Subject:
    """A page: its title, what the benchmark is, and the columns of its tables.

    Without ``columns`` all are shown. ``split``: a column with a table for each of its values.
    """

    title: str
    about: str
    columns: tuple[str, ...] = ()
    split: str = ""


_WARM = (
    *("model", "engine", "path", "median_ms", "spread_ms", "processor_ms"),
    *("ratio_to_onnxruntime", "runs"),
)
_DISB = (
    *("workload", "round", "quiet", "side", "mean_ms", "p50_ms", "p99_ms", "mean_ratio"),
    *("p99_ratio", "throughput_ratio", "per_s", "best_effort_per_s", "failed", "dropped"),
    "missed_percent",
)
_EXITS = "Learned caches against the same model without, in process, sides in turns"

SUBJECTS: dict[str, Subject] = {
    "warm-1": Subject(
        "Warm inference, one thread",
        "Time of an inference of loaded models, engines in turns, in process and through Triton.",
        _WARM,
    ),
    "warm-2": Subject(
        "Warm inference, two threads",
        "Time of one inference of a loaded model, engines in turns.",
        _WARM,
    ),
    "warm-real": Subject(
        "Warm inference of real models",
        "Time of an inference of loaded models that nobody tuned for, engines in turns.",
        _WARM,
    ),
    "warm-real-2": Subject(
        "Warm inference of real models, two threads",
        "Time of an inference of loaded models that nobody tuned for, engines in turns.",
        _WARM,
    ),
    "warm-real-models": Subject(
        "Warm inference of models that nobody tuned for, as reported",
        "Time over ONNX Runtime's on models beyond the sample repository.",
    ),
    "cold-process": Subject(
        "Cold start in process",
        "From the load call to the first answer in a fresh process with the page cache hot.",
        (
            *("part", "model", "batch", "engine", "first_ms", "spread_ms", "second_ms"),
            *("warm_ms", "first_over_warm", "speedup", "samples"),
        ),
        "part",
    ),
    "cold-served": Subject(
        "Cold start through Triton",
        "From the load call on a running server to the first answer, beside Python backends.",
        (
            *("model", "batch", "engine", "ready_ms", "first_ms", "spread_ms", "stub_ms"),
            *("parse_ms", "load_ms", "run_ms", "beside_ms", "second_ms", "over_brisk", "samples"),
        ),
    ),
    "load_beside": Subject(
        "Loads beside a real-time model",
        "What loads of another model cost the requests of a real-time one, through Triton.",
    ),
    "start": Subject(
        "Start of a server",
        "From `exec` of the server to its first answer.",
    ),
    "start-reported": Subject(
        "Start of a server, as reported",
        "From `exec` of the server to its first answer.",
    ),
    "density": Subject(
        "Many models on one server",
        "Memory and start of a server with many small models, and of a runtime without any.",
        split="part",
    ),
    "preempt-workloads": Subject(
        "Priorities: DISB's workloads",
        "REEF's workloads of real-time and best-effort clients through real servers.",
        _DISB,
        "stage",
    ),
    **{
        f"preempt-workload-{name}": Subject(
            f"Priorities: DISB's workload {name}",
            f"{about}, through real servers.",
            _DISB,
            "stage",
        )
        for name, about in {
            "A": "A real-time client of low load beside a best-effort one",
            "B": "A real-time client of high load beside a best-effort one",
            "C": "A real-time client beside five best-effort ones",
            "D": "Five real-time clients beside five best-effort ones",
            "E": "Five real-time clients with random arrivals beside five best-effort ones",
            "REAL": "A trace of real-time requests beside five best-effort clients",
        }.items()
    },
    "preempt-de": Subject(
        "Priorities: DISB's workloads D and E",
        "REEF's workloads in which every network is asked in real time.",
        _DISB,
    ),
    "preempt-real": Subject(
        "Priorities: DISB's workload REAL",
        "A trace of real-time requests beside best-effort clients through real servers.",
        _DISB,
    ),
    "preempt-parts": Subject(
        "Priorities: latency of preemption",
        "From sending a real-time request to its first layer, network by network.",
        split="figure",
    ),
    "preempt-layers": Subject(
        "Priorities: latency of preemption by the length of a layer",
        "From sending a real-time request to its first layer, beside layers of 1 to 300 ms.",
    ),
    "preempt-pairs": Subject(
        "Priorities: pairs of networks",
        "Each network in real time beside each other one at best effort.",
    ),
    "preempt-equality": Subject(
        "Priorities: answers of interrupted runs",
        "Whether runs that were really interrupted give the bits of undisturbed ones.",
    ),
    "exits-fashion": Subject("Early exits: Fashion-MNIST", f"{_EXITS}."),
    "exits-streams": Subject("Early exits: Zipf streams", f"{_EXITS}, learning from the stream."),
    "exits-video": Subject("Early exits: a fixed camera", f"{_EXITS}, learning from the video."),
    "exits-served": Subject(
        "Early exits: through Triton",
        "Requests to an entry with learned caches and to one without.",
    ),
    "exits-variants": Subject(
        "Early exits: variants and compositions",
        "What every variant of predictor and every way of composing them comes to.",
    ),
    "exits-promise": Subject(
        "Early exits: the promise", "Whether what was promised is kept, again and again."
    ),
    "pipeline": Subject(
        "Pipelines",
        "One request over several networks, planner against planner.",
        (
            *("policy", "objective_ms", "planner", "accuracy", "accuracy_gain_points"),
            *("mean_ms", "latency_gain", "missed"),
        ),
    ),
    "hop": Subject(
        "Stub to worker and back",
        "What a request pays between stub and worker, apart from computing.",
    ),
    "conformance": Subject(
        "Conformance",
        "The ONNX project's own node cases as a CPU serves them, beside plain ONNX Runtime.",
        split="kind",
    ),
    "pressure": Subject(
        "Pressure",
        "Many clients at once on the sample models; memory of the server side.",
        split="kind",
    ),
    "soak": Subject(
        "Soak",
        "Clients beside loads, killed workers, damaged artefacts and full disks.",
        split="kind",
    ),
}


def subject_of(run: PublishedRun) -> Subject:
    """The file's page; a file that nobody described is shown whole, under its own name."""
    return SUBJECTS.get(run.file, Subject(run.file, f"`brisk bench {run.name}`."))
