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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc import InferenceServerClient

from brisk_client.benchmarks.engines.model_inputs import make_inputs
from brisk_client.benchmarks.harness.command_line import benchmark_parser, deliver
from brisk_client.benchmarks.harness.machine import new_report
from brisk_client.benchmarks.harness.sampling import summarise
from brisk_client.benchmarks.harness.served_entries import write_brisk_entry
from brisk_client.benchmarks.harness.served_server import BenchmarkServer, benchmark_server
from brisk_client.child_process import Child, child_process
from brisk_client.inference import InferenceClient, Transport
from brisk_client.report import Check, Report, check_tail_ratio, plot_bars
from brisk_client.tails import quantile, tail_or_shortage

REPOSITORY = Path(__file__).resolve().parents[3] / "model_repository"

SERVED, LOADED = "resnet18_ort/1", "resnet50/1"
"""Sample models: a real-time one of some 15 ms on two cores, and one of 102 MB."""

_LOAD_TIMEOUT_S = 120.0
INTERVAL_S = 0.04
LIMIT = 1.10
"""Of the served model's 99th percentile beside loads over that alone."""

NOTES = (
    "a request every 40 ms, or at once where the one before took longer; latency as the client "
    "sees it, over gRPC; class realtime",
    "loads: another process loads and unloads the other model without a pause; stubs: the same of "
    "a lazy entry, so that only Triton's part of a load happens",
)


@dataclass(slots=True)
class Windows:
    """All windows of one kind: latency of every request by window, loads done meanwhile."""

    latencies_s: list[list[float]] = field(default_factory=list)
    loads_s: list[float] = field(default_factory=list)

    @property
    def pooled_s(self) -> list[float]:
        return [seconds for window in self.latencies_s for seconds in window]


def run(quick: bool = False, threads: int | None = None) -> Report:
    """Measure. ``threads``: of the runtime, None for its default, all usable cores.

    Raises FileNotFoundError where the sample models are not generated.
    """
    for label in (SERVED, LOADED):
        if not (REPOSITORY / label / "model.onnx").is_file():
            raise FileNotFoundError(f"no {REPOSITORY / label}/model.onnx; generate.py makes it")
    windows, duration_s = (12, 5.0) if quick else (24, 10.0)
    packages = ("torch", "tritonclient", "numpy")
    report = new_report("load_beside", packages, NOTES, threads=threads or "all")
    variables = {"BRISK_THREADS": str(threads)} if threads else {}
    with tempfile.TemporaryDirectory(prefix="brisk-beside-") as folder:
        repository = Path(folder)
        parameters = {"brisk_class": "realtime"}
        write_brisk_entry(repository, REPOSITORY / SERVED / "model.onnx", "served", parameters)
        write_brisk_entry(repository, REPOSITORY / LOADED / "model.onnx", "loaded")
        lazy = {"brisk_load": "lazy"}
        write_brisk_entry(repository, REPOSITORY / LOADED / "model.onnx", "lazy", lazy)
        options = ["--disable-auto-complete-config", "--model-control-mode=explicit"]
        with benchmark_server(repository, variables, [*options, "--load-model=served"]) as server:
            measured = _measure(server, windows, duration_s)
    add_results(report, measured)
    return report


def main(arguments: Sequence[str]) -> int:
    """The command line; the exit status is 0 where every check holds."""
    parser = benchmark_parser("load_beside", __doc__, "fewer and shorter windows")
    parser.add_argument("--threads", type=int, default=None, help="threads of the runtime")
    chosen = parser.parse_args(arguments)
    report = run(chosen.quick, chosen.threads)
    return deliver(
        report, chosen, lambda folder: plot_bars(report, folder, "p99_ms", "model", "beside")
    )


def add_results(report: Report, measured: Mapping[str, Windows]) -> None:
    """Add a row for each kind of window, and the check of their 99th percentiles."""
    for beside, windows in measured.items():
        latencies_s = windows.pooled_s
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
    alone, beside_loads = measured["nothing"].pooled_s, measured["loads"].pooled_s
    text = f"{SERVED}: 99th percentile beside loads of {LOADED} over that alone"
    report.checks.append(check_tail_ratio(text, beside_loads, alone, 0.99, LIMIT))
    done = len(measured["loads"].loads_s)
    report.checks.append(Check("loads done meanwhile", done, ">= 1", done >= 1))


def _measure(server: BenchmarkServer, count: int, duration_s: float) -> dict[str, Windows]:
    """``count`` windows of ``duration_s``, a third of each kind."""
    inputs = make_inputs(REPOSITORY / SERVED / "model.onnx", {})
    measured = {"nothing": Windows(), "loads": Windows(), "stubs": Windows()}
    with (
        InferenceClient(server.grpc, Transport.GRPC) as client,
        _repeated_loads(server, "loaded") as loads,
        _repeated_loads(server, "lazy") as stubs,
    ):
        others = {"nothing": None, "loads": loads, "stubs": stubs}
        _ask(client, inputs, 2.0)
        for kind in list(others) * (count // len(others)):
            windows, other = measured[kind], others[kind]
            if other is not None:
                other.say("start")
            windows.latencies_s.append(_ask(client, inputs, duration_s))
            if other is not None:
                other.say("stop")
                windows.loads_s += other.hear(_LOAD_TIMEOUT_S)
    return measured


def _ask(
    client: InferenceClient, inputs: Mapping[str, np.ndarray], duration_s: float
) -> list[float]:
    """A request every INTERVAL_S for ``duration_s``: the latency of each, in seconds."""
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


@contextlib.contextmanager
def _repeated_loads(server: BenchmarkServer, model: str) -> Iterator[Child]:
    """A process that loads and unloads ``model`` from each "start" to the next "stop".

    Then it finishes the load in progress and says what each took, in seconds.
    """
    what = f"the process that loads '{model}'"
    with child_process(what, _load_repeatedly, server.grpc, model) as child:
        child.hear(_LOAD_TIMEOUT_S)
        yield child


def _load_repeatedly(parent: Connection, grpc_url: str, model: str) -> None:
    client = InferenceServerClient(grpc_url)
    parent.send("ready")
    with contextlib.suppress(EOFError):  # the parent has what it wants
        while parent.recv() == "start":
            took_s = []
            while not parent.poll():
                before_s = time.perf_counter()
                client.load_model(model)
                took_s.append(time.perf_counter() - before_s)
                client.unload_model(model)
                _wait_unloaded(client, model)
            parent.recv()
            parent.send(took_s)


def _wait_unloaded(client: InferenceServerClient, model: str) -> None:
    """Triton answers an unload before the stub has ended, and the session with it."""
    while any(
        entry.name == model and entry.state != "UNAVAILABLE"
        for entry in client.get_model_repository_index().models
    ):
        time.sleep(0.1)
