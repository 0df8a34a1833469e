"""`brisk bench load_beside`: what loading a model costs the requests of one that is served.

A real-time model answers one request every ``INTERVAL_S`` through a real Triton. Windows
take turns: alone; while another process has the same server load and unload a model of about 100
MB, one load after the other; and the same for an entry that only starts Triton's stub (``lazy``),
which tells how much of the disturbance is not the load's.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc import InferenceServerClient

from brisk_bench.engines.model_inputs import make_inputs
from brisk_bench.harness.command_line import bars, benchmark_parser, run_command
from brisk_bench.harness.machine import new_report
from brisk_bench.harness.report import Report, check_limit, check_tail_ratio
from brisk_bench.harness.sampling import summarise
from brisk_bench.harness.served_entries import sample_file, write_brisk_entry
from brisk_bench.harness.served_server import (
    WITHOUT_COMPLETION,
    BenchmarkServer,
    benchmark_server,
    unload_model,
)
from brisk_bench.harness.tails import quantile, tail_or_shortage
from brisk_client.inference import InferenceClient, Transport
from brisk_client.workload.child_process import child_process

SERVED, LOADED = "resnet18_ort/1", "resnet50/1"
"""Sample models: a real-time one of some 15 ms on two cores, and one of 102 MB."""

_LOAD_TIMEOUT_S = 120.0
INTERVAL_S = 0.04
LIMIT = 1.10
"""The most of the served model's 99th percentile during loads over that alone."""

NOTES = (
    "a request every 40 ms, or at once where the one before took longer; latency as the client "
    "sees it, over gRPC; class realtime",
    "loads: another process loads and unloads the other model without a pause; stubs: the same of "
    "a lazy entry, so that only Triton's part of a load happens",
)


@dataclass(slots=True)
class Windows:
    """All windows of one kind: latency of every request, loads done meanwhile."""

    latencies_s: list[float] = field(default_factory=list)
    loads_s: list[float] = field(default_factory=list)


def run(quick: bool = False, threads: int | None = None) -> Report:
    """Measure the windows. ``threads``: of the runtime; None for its default, all usable cores.

    Raises FileNotFoundError if the sample models are not generated.
    """
    served, loaded = map(sample_file, (SERVED, LOADED))
    windows, duration_s = (12, 5.0) if quick else (24, 10.0)
    packages = ("torch", "tritonclient", "numpy")
    report = new_report("load_beside", packages, NOTES, threads=threads or "all")
    variables = {"BRISK_THREADS": str(threads)} if threads else {}
    with tempfile.TemporaryDirectory(prefix="brisk-beside-") as folder:
        repository = Path(folder)
        write_brisk_entry(repository, served, "served", {"brisk_class": "realtime"})
        write_brisk_entry(repository, loaded, "loaded")
        write_brisk_entry(repository, loaded, "lazy", {"brisk_load": "lazy"})
        options = [WITHOUT_COMPLETION, "--model-control-mode=explicit", "--load-model=served"]
        with benchmark_server(repository, variables, options) as server:
            measured = _measure(server, windows, duration_s)
    add_results(report, measured)
    return report


def main(arguments: Sequence[str]) -> int:
    parser = benchmark_parser("load_beside", __doc__, "fewer and shorter windows")
    parser.add_argument("--threads", type=int, default=None, help="threads of the runtime")
    return run_command(parser, arguments, run, bars("p99_ms", "model", "beside"))


def add_results(report: Report, measured: Mapping[str, Windows]) -> None:
    """Add a row for each kind of window, and the check of their 99th percentiles."""
    for beside, windows in measured.items():
        latencies_s = windows.latencies_s
        summary = summarise(latencies_s)
        row: dict[str, Any] = {
            "model": SERVED,
            "beside": beside,
            "median_ms": summary.median * 1e3,
            "spread_ms": summary.spread * 1e3,
            "p90_ms": quantile(latencies_s, 0.90) * 1e3,
            "p99_ms": tail_or_shortage(latencies_s, 0.99, 1e3),
            "greatest_ms": max(latencies_s) * 1e3,
            "requests": len(latencies_s),
            "loads": len(windows.loads_s),
        }
        if windows.loads_s:
            row["load_ms"] = statistics.median(windows.loads_s) * 1e3
        report.rows.append(row)
    alone, beside_loads = measured["nothing"].latencies_s, measured["loads"].latencies_s
    text = f"{SERVED}: 99th percentile beside loads of {LOADED} over that alone"
    report.checks.append(check_tail_ratio(text, beside_loads, alone, 0.99, LIMIT))
    done = len(measured["loads"].loads_s)
    report.checks.append(check_limit("loads done meanwhile", done, ">=", 1))


def _measure(server: BenchmarkServer, count: int, duration_s: float) -> dict[str, Windows]:
    """Measure ``count`` windows of ``duration_s``, a third of each kind."""
    inputs = make_inputs(sample_file(SERVED))
    others = {"nothing": "", "loads": "loaded", "stubs": "lazy"}
    measured = {kind: Windows() for kind in others}
    with (
        InferenceClient(server.grpc, Transport.GRPC) as client,
        child_process("the process that loads", _load_repeatedly, server.grpc) as loader,
    ):
        loader.hear(_LOAD_TIMEOUT_S)
        _ask(client, inputs, 2.0)
        for kind in list(others) * (count // len(others)):
            if others[kind]:
                loader.say(others[kind])
            measured[kind].latencies_s += _ask(client, inputs, duration_s)
            if others[kind]:
                loader.say("stop")
                measured[kind].loads_s += loader.hear(_LOAD_TIMEOUT_S)
    return measured


def _ask(
    client: InferenceClient, inputs: Mapping[str, np.ndarray], duration_s: float
) -> list[float]:
    """Send a request every INTERVAL_S for ``duration_s``; return the latencies in seconds."""
    latencies_s = []
    end_s = time.perf_counter() + duration_s
    due_s = time.perf_counter()
    while (now_s := time.perf_counter()) < end_s:
        if now_s < due_s:
            time.sleep(due_s - now_s)
        before_s = time.perf_counter()
        client.infer("served", inputs)
        latencies_s.append(time.perf_counter() - before_s)
        due_s = max(due_s + INTERVAL_S, before_s)
    return latencies_s


def _load_repeatedly(parent: Connection, grpc_url: str) -> None:
    """Run as the child: load and unload the model whose name comes, until the next message.

    Then it finishes the load in progress and sends what each took, in seconds.
    """
    client = InferenceServerClient(grpc_url)
    parent.send("ready")
    with contextlib.suppress(EOFError):  # the parent has what it wants
        while model := parent.recv():
            took_s = []
            while not parent.poll():
                before_s = time.perf_counter()
                client.load_model(model)
                took_s.append(time.perf_counter() - before_s)
                unload_model(client, model)
            parent.recv()
            parent.send(took_s)
