"""`brisk bench served`: the sample models through one real Triton, engine against engine.

Each model is an entry of Brisk, one of the plain Python backend that calls ONNX Runtime, and one
that calls torch. One client asks them in turns (A B C A B C …) with one request in flight, so
only one engine computes at a time. `brisk bench warm` runs this as its second part.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from brisk_client.benchmarks.engines.model_inputs import make_inputs
from brisk_client.benchmarks.harness.command_line import benchmark_parser, deliver
from brisk_client.benchmarks.harness.machine import describe_machine, installed_versions
from brisk_client.benchmarks.harness.sampling import median_ratio, summarise
from brisk_client.benchmarks.harness.served_entries import ServedEntry, write_entries
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


@dataclass(frozen=True, slots=True)
class ServedBurst:
    """Consecutive requests: wall time of each, the server side's processor time together."""

    wall_s: list[float]
    processor_s: float


def run(quick: bool = False, threads: int = 1, transport: Transport = Transport.GRPC) -> Report:
    """Measure the sample models. Raises FileNotFoundError where they are not generated."""
    report = Report(
        name="served",
        machine={**describe_machine(), "threads": threads, "transport": transport.value},
        versions=installed_versions("torch", "onnxruntime", "tritonclient", "numpy"),
        rows=[],
        checks=[],
        notes=list(NOTES),
    )
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


def _measure_entries(
    server: BenchmarkServer,
    entries: Sequence[ServedEntry],
    inputs: Mapping[str, np.ndarray],
    quick: bool,
    transport: Transport,
) -> dict[str, list[ServedBurst]]:
    """Bursts by engine, one for each round."""
    url = server.grpc if transport is Transport.GRPC else server.http
    rounds, duration_s = (4, 0.5) if quick else (10, 1.5)
    bursts: dict[str, list[ServedBurst]] = {entry.engine: [] for entry in entries}
    with InferenceClient(url, transport) as client:
        for entry in entries:
            _burst(server, client, entry.name, inputs, 1.0)
        for _ in range(rounds):
            for entry in entries:
                burst = _burst(server, client, entry.name, inputs, duration_s)
                bursts[entry.engine].append(burst)
    return bursts


def _burst(
    server: BenchmarkServer,
    client: InferenceClient,
    model: str,
    inputs: Mapping[str, np.ndarray],
    duration_s: float,
) -> ServedBurst:
    """One request after the other for ``duration_s``, at least three."""
    wall_s: list[float] = []
    used_s = server.processor_s()
    started_s = time.perf_counter()
    while len(wall_s) < 3 or time.perf_counter() - started_s < duration_s:
        before_s = time.perf_counter()
        client.infer(model, inputs)
        wall_s.append(time.perf_counter() - before_s)
    return ServedBurst(wall_s, server.processor_s() - used_s)


def _add(report: Report, label: str, path: str, bursts: Mapping[str, list[ServedBurst]]) -> None:
    for engine, measured in bursts.items():
        wall = summarise([seconds for burst in measured for seconds in burst.wall_s])
        row: dict[str, Any] = {
            "model": f"{label} served",  # a plot of its own beside warm's of the same model
            "engine": engine,
            "path": path,
            "median_ms": wall.median * 1e3,
            "spread_ms": wall.spread * 1e3,
            "least_ms": wall.least * 1e3,
            "processor_ms": sum(b.processor_s for b in measured) / wall.count * 1e3,
            "runs": wall.count,
            "ratio_to_onnxruntime": round(ratio(bursts, engine), 3),
        }
        report.rows.append(row)
    found, limit = ratio(bursts, "brisk"), LIMITS.get(label, OTHER_LIMIT)
    text = f"{label} through Triton: brisk / Python backend with onnxruntime"
    report.checks.append(Check(text, round(found, 3), f"<= {limit}", found <= limit))


def ratio(bursts: Mapping[str, Sequence[ServedBurst]], engine: str) -> float:
    """``engine``'s median latency over ONNX Runtime's, the median over rounds."""
    pairs = zip(bursts[engine], bursts[BASE], strict=True)
    return median_ratio(
        [
            (summarise(ours.wall_s).median, summarise(theirs.wall_s).median)
            for ours, theirs in pairs
        ]
    )
