"""`brisk bench served`: the sample models through one real Triton, engine against engine.

Each model is an entry of Brisk, one of the plain Python backend that calls ONNX Runtime, and one
that calls torch. One client asks them in turns (A B C A B C …) with one request in flight, so
only one engine computes at a time. `brisk bench warm` runs this as its second part.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from brisk_client.benchmarks.engines.model_inputs import make_inputs
from brisk_client.benchmarks.harness.command_line import bars, benchmark_parser, run_command
from brisk_client.benchmarks.harness.machine import new_report
from brisk_client.benchmarks.harness.sampling import (
    Burst,
    burst_rounds,
    burst_row,
    in_rounds,
    median_ratio,
    time_inferences,
)
from brisk_client.benchmarks.harness.served_entries import (
    ONNXRUNTIME_MODEL,
    TORCH_MODEL,
    sample_file,
    signature_of,
    write_brisk_entry,
    write_python_entry,
)
from brisk_client.benchmarks.harness.served_server import (
    WITHOUT_COMPLETION,
    benchmark_server,
    thread_variables,
)
from brisk_client.inference import InferenceClient, Transport
from brisk_client.report import Report, check_limit

LABELS = ("resnet50/1", "encoder/1", "mlp/1", "digits_cnn/1")

LIMITS = {"resnet50/1": 1.15, "encoder/1": 1.15}
OTHER_LIMIT = 1.5
"""Brisk's median latency over that of a Python backend which calls ONNX Runtime."""

BASE = "onnxruntime"

NOTES = (
    "through Triton: client's latency of one request at a time; onnxruntime and torch eager are "
    "models of the plain Python backend (onnxruntime: intra-op threads as given, no spinning)",
    "processor ms: user and system time of tritonserver, all stubs and Brisk's runtime, an "
    "inference; counted in ticks of 10 ms over a whole round",
)


def run(quick: bool = False, threads: int = 1) -> Report:
    """Measure the sample models. Raises FileNotFoundError where they are not generated."""
    versions = ("torch", "onnxruntime", "tritonclient", "numpy")
    report = new_report("served", versions, NOTES, threads=threads)
    measure(report, quick, threads)
    return report


def main(arguments: Sequence[str]) -> int:
    parser = benchmark_parser("served", __doc__, "few and short rounds")
    parser.add_argument("--threads", type=int, default=1, help="threads of every engine")
    plot = bars("median_ms", "model", "engine", "spread_ms")
    return run_command(parser, arguments, run, plot)


def measure(report: Report, quick: bool, threads: int) -> None:
    """Add each sample's rows and its check to ``report``. One server at a time, one per sample.

    Raises FileNotFoundError where a sample is not generated.
    """
    effort = (4, 0.5) if quick else (10, 1.5)
    for label in LABELS:
        bursts = _measure_sample(sample_file(label), label, threads, effort)
        _add(report, label, bursts)


def _measure_sample(
    file: Path, label: str, threads: int, effort: tuple[int, float]
) -> dict[str, list[Burst]]:
    """Bursts by engine, one for each round. ``effort``: rounds, seconds of each burst."""
    rounds, duration_s = effort
    inputs = make_inputs(file)
    with tempfile.TemporaryDirectory(prefix="brisk-served-") as folder:
        entries = write_entries(Path(folder), file, label, threads)
        with (
            benchmark_server(
                Path(folder), thread_variables(threads), [WITHOUT_COMPLETION]
            ) as server,
            InferenceClient(server.grpc, Transport.GRPC) as client,
        ):

            def burst(engine: str) -> Burst:
                used_s = server.processor_s()
                ask = partial(client.infer, entries[engine], inputs)
                return Burst(time_inferences(ask, duration_s), server.processor_s() - used_s)

            return in_rounds(entries, rounds, burst, uncounted=1)[0]


def write_entries(repository: Path, file: Path, label: str, threads: int) -> dict[str, str]:
    """Names of entries by engine, of those that have the model ``file``; ``label``: NAME/VERSION.

    The same configuration for all, but for the backend; one instance each.
    """
    from brisk_client.benchmarks.engines.eager import NETWORKS

    sources = {"onnxruntime": ONNXRUNTIME_MODEL}
    if file.resolve().parent.parent.name in NETWORKS:
        sources["torch eager"] = TORCH_MODEL
    stem = label.replace("/", "_")
    entries = {name: f"{stem}_{name.replace(' ', '_')}" for name in ("brisk", *sources)}
    write_brisk_entry(repository, file, entries["brisk"])
    values = {"file": str(file.resolve()), "weights": None, "threads": threads}
    for engine, source in sources.items():
        write_python_entry(repository, entries[engine], signature_of(file), source, **values)
    return entries


def _add(report: Report, label: str, bursts: Mapping[str, list[Burst]]) -> None:
    for engine, taken in bursts.items():
        report.rows.append(
            {
                "model": f"{label} served",  # a plot of its own beside warm's of the same model
                "engine": engine,
                "path": "Triton, gRPC",
                **burst_row(taken),
                "ratio_to_onnxruntime": round(ratio(bursts, engine), 3),
            }
        )
    text = f"{label} through Triton: brisk / Python backend with onnxruntime"
    limit = LIMITS.get(label, OTHER_LIMIT)
    report.checks.append(check_limit(text, ratio(bursts, "brisk"), "<=", limit, 3))


def ratio(bursts: Mapping[str, Sequence[Burst]], engine: str) -> float:
    """``engine``'s median latency over ONNX Runtime's, the median over rounds."""
    return median_ratio(burst_rounds(bursts[engine], bursts[BASE]))
