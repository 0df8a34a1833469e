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

import numpy as np

from brisk_client.benchmarks.engines.model_inputs import make_inputs
from brisk_client.benchmarks.harness.command_line import benchmark_parser, deliver
from brisk_client.benchmarks.harness.machine import new_report
from brisk_client.benchmarks.harness.sampling import (
    Burst,
    burst_rounds,
    burst_row,
    median_ratio,
    time_inferences,
)
from brisk_client.benchmarks.harness.served_entries import (
    ONNXRUNTIME_MODEL,
    TORCH_MODEL,
    signature_of,
    write_brisk_entry,
    write_python_entry,
)
from brisk_client.benchmarks.harness.served_server import BenchmarkServer, benchmark_server
from brisk_client.inference import InferenceClient, Transport
from brisk_client.report import Check, Report, plot_bars

REPOSITORY = Path(__file__).resolve().parents[3] / "model_repository"

SAMPLES = ("resnet50/1", "encoder/1", "mlp/1", "digits_cnn/1")

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


def run(quick: bool = False, threads: int = 1, transport: Transport = Transport.GRPC) -> Report:
    """Measure the sample models. Raises FileNotFoundError where they are not generated."""
    versions = ("torch", "onnxruntime", "tritonclient", "numpy")
    report = new_report("served", versions, NOTES, threads=threads, transport=transport.value)
    measure(report, quick, threads, transport)
    return report


def main(arguments: Sequence[str]) -> int:
    """The command line; the exit status is 0 where every check holds."""
    parser = benchmark_parser("served", __doc__, "few and short rounds")
    parser.add_argument("--threads", type=int, default=1, help="threads of every engine")
    parser.add_argument("--http", action="store_true", help="ask over HTTP, not gRPC")
    chosen = parser.parse_args(arguments)
    transport = Transport.HTTP if chosen.http else Transport.GRPC
    report = run(chosen.quick, chosen.threads, transport)
    return deliver(
        report,
        chosen,
        lambda folder: plot_bars(report, folder, "median_ms", "model", "engine", "spread_ms"),
    )


def measure(
    report: Report, quick: bool, threads: int, transport: Transport = Transport.GRPC
) -> None:
    """Add each sample's rows and its check to ``report``. One server at a time, one per sample.

    Raises FileNotFoundError where a sample is not generated.
    """
    for label in SAMPLES:
        file = REPOSITORY / label / "model.onnx"
        if not file.is_file():
            raise FileNotFoundError(f"no {file}; model_repository/generate.py makes it")
        inputs = make_inputs(file, {})
        with tempfile.TemporaryDirectory(prefix="brisk-served-") as folder:
            entries = write_entries(Path(folder), file, label, threads)
            variables = {"BRISK_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
            options = ["--disable-auto-complete-config"]
            with benchmark_server(Path(folder), variables, options) as server:
                bursts = _measure_entries(server, entries, inputs, quick, transport)
        _add(report, label, f"Triton, {transport.value}", bursts)


def write_entries(repository: Path, file: Path, label: str, threads: int) -> dict[str, str]:
    """Names of entries by engine, of those that have the model ``file``; ``label``: NAME/VERSION.

    The same configuration for all, but for the backend; one instance each.
    """
    from brisk_client.benchmarks.engines.eager import NETWORKS

    sources = {"onnxruntime": ONNXRUNTIME_MODEL}
    if file.resolve().parent.parent.name in NETWORKS:
        sources["torch eager"] = TORCH_MODEL
    stem, given = label.replace("/", "_"), str(file.resolve())
    entries = {name: f"{stem}_{name.replace(' ', '_')}" for name in ("brisk", *sources)}
    write_brisk_entry(repository, file, entries["brisk"])
    for engine, source in sources.items():
        write_python_entry(
            repository,
            entries[engine],
            signature_of(file),
            source,
            file=given,
            network=f"eager_network(Path({given!r}))",
            threads=threads,
        )
    return entries


def _measure_entries(
    server: BenchmarkServer,
    entries: Mapping[str, str],
    inputs: Mapping[str, np.ndarray],
    quick: bool,
    transport: Transport,
) -> dict[str, list[Burst]]:
    """Bursts by engine, one for each round."""
    url = server.grpc if transport is Transport.GRPC else server.http
    rounds, duration_s = (4, 0.5) if quick else (10, 1.5)
    bursts: dict[str, list[Burst]] = {engine: [] for engine in entries}
    with InferenceClient(url, transport) as client:
        for turn in range(rounds + 1):
            for engine, name in entries.items():
                used_s = server.processor_s()
                ask = partial(client.infer, name, inputs)
                wall_s = time_inferences(ask, duration_s if turn else 1.0)
                if turn:  # the first round warms up
                    bursts[engine].append(Burst(wall_s, server.processor_s() - used_s))
    return bursts


def _add(report: Report, label: str, path: str, bursts: Mapping[str, list[Burst]]) -> None:
    for engine, taken in bursts.items():
        report.rows.append(
            {
                "model": f"{label} served",  # a plot of its own beside warm's of the same model
                "engine": engine,
                "path": path,
                **burst_row(taken),
                "ratio_to_onnxruntime": round(ratio(bursts, engine), 3),
            }
        )
    found, limit = ratio(bursts, "brisk"), LIMITS.get(label, OTHER_LIMIT)
    text = f"{label} through Triton: brisk / Python backend with onnxruntime"
    report.checks.append(Check(text, round(found, 3), f"<= {limit}", found <= limit))


def ratio(bursts: Mapping[str, Sequence[Burst]], engine: str) -> float:
    """``engine``'s median latency over ONNX Runtime's, the median over rounds."""
    return median_ratio(burst_rounds(bursts[engine], bursts[BASE]))
