"""`brisk bench entries`: many models come and go, one after the other, on one server.

As where each customer has a model and few of them are asked at a time: every `PERIOD_S` an entry
is loaded and asked, and it is unloaded when `KEPT` others have come behind it, so that its
prepared form is made. Artefacts may take a limit that is far less than those of all models
together. Each answer is compared with what numpy computes; the artefacts' disk must stay within
its limit, and nothing may grow with the number of entries that have come.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from tritonclient.grpc import InferenceServerClient, InferInput

from brisk.artefacts.room import kept_artefacts
from brisk.settings import CACHE_LIMIT
from brisk_bench.density.memory import memory_of
from brisk_bench.harness.command_line import (
    UnusableArgumentError,
    bars,
    benchmark_parser,
    run_command,
)
from brisk_bench.harness.machine import new_report
from brisk_bench.harness.processes import KINDS, processes_of
from brisk_bench.harness.report import Report, check_limit
from brisk_bench.harness.served_server import FAILURES, BenchmarkServer, benchmark_server
from brisk_bench.samples.writer import GraphWriter

LIMIT_MIB, QUICK_LIMIT_MIB = 32, 4
KEPT = 20
PERIOD_S = 0.35
"""The time from one entry to the next: the runtime begins a form five seconds behind the load."""

ASKED = 6
"""Requests to each entry, of 1 to 3 rows."""

FEATURES = 256
TOLERANCE = 1e-3
REACHED = 0.5
"""The least share of the limit that artefacts take: less says nothing of it."""

MOST_GROWTH = {"mib": ("memory", 1.1), "load_ms": ("load time", 1.25)}
"""The most growth of the median from the first half of the windows to the second. The first two do
not count: in them the server and the runtime reach their size."""

NOTES = (
    "fully connected networks of 24 structures (2 to 4 layers of 96 to 320 units), each with "
    "weights of its own; one client, gRPC, explicit mode, entries of one line",
    "disk_mib: prepared forms of the cache directory, as the limit counts them; load_ms: of the "
    "load call; first_ms: from there to the first answer; medians of the window",
    "mib: private and proportional memory of all processes at the window's end, by kind",
)

Reference = Callable[[np.ndarray], np.ndarray]


@dataclass(slots=True)
class Window:
    """What a window of entries has measured."""

    loads_s: list[float] = field(default_factory=list)
    firsts_s: list[float] = field(default_factory=list)
    disk_bytes: int = 0
    """The most that artefacts took."""


def network(number: int) -> tuple[onnx.ModelProto, Reference]:
    """Return the model of an entry and the same in numpy."""
    rng = np.random.default_rng(number)
    units, layers = 96 + 32 * (number % 8), 1 + number % 3
    sizes = [FEATURES, *[units] * layers, 10]
    weights = [
        (rng.standard_normal((before, behind)) / 16).astype(np.float32)
        for before, behind in pairwise(sizes)
    ]
    graph = GraphWriter("entry", opset=18)
    value = graph.input("x", "float32", ("rows", FEATURES))
    for place, each in enumerate(weights):
        value = graph.add("MatMul", value, graph.weight(each))
        if place < layers:
            value = graph.add("Relu", value)
    graph.output(value, "y", "float32", ("rows", 10))

    def compute(x: np.ndarray) -> np.ndarray:
        for each in weights[:-1]:
            x = np.maximum(x @ each, 0)
        return x @ weights[-1]

    return graph.model(), compute


def run(quick: bool = False, entries: int = 1000) -> Report:
    """Load, ask and unload so many ``entries`` (60 where ``quick``).

    Raises UnusableArgumentError for fewer than two.
    """
    entries, limit_mib = (60, QUICK_LIMIT_MIB) if quick else (entries, LIMIT_MIB)
    if entries < 2:
        raise UnusableArgumentError(f"--entries {entries}: growth takes at least 2")
    window = max(entries // 10, 1)
    report = new_report(
        "entries", ("onnxruntime", "tritonclient", "numpy"), NOTES, entries=entries
    )
    faults: list[str] = []
    with _serving(entries, limit_mib) as (server, references, cache):
        client, loaded = InferenceServerClient(server.grpc), deque[int]()
        measured, due_s = Window(), time.monotonic()
        for number, reference in enumerate(references):
            time.sleep(max(due_s - time.monotonic(), 0.0))
            due_s = time.monotonic() + PERIOD_S
            _visit(client, number, reference, measured, faults)
            loaded.append(number)
            if len(loaded) > KEPT:
                _leave(client, loaded.popleft(), faults)
            measured.disk_bytes = max(measured.disk_bytes, _disk_bytes(cache))
            if (number + 1) % window == 0:
                report.rows.append(_row(number + 1, measured, server))
                measured = Window()
        client.close()
    _check(report, faults, limit_mib)
    return report


def main(arguments: Sequence[str]) -> int:
    parser = benchmark_parser("entries", __doc__, "60 entries")
    parser.add_argument("--entries", type=int, default=1000)
    return run_command(parser, arguments, run, bars("load_ms", "what", "entries"))


def _name(number: int) -> str:
    return f"entry_{number}"


@contextmanager
def _serving(
    entries: int, limit_mib: int
) -> Iterator[tuple[BenchmarkServer, Sequence[Reference], Path]]:
    """Serve a repository of so many entries; give what they compute and the cache directory."""
    with tempfile.TemporaryDirectory(prefix="brisk-entries-") as folder:
        repository, cache = Path(folder) / "repository", Path(folder) / "cache"
        references = []
        for number in range(entries):
            model, reference = network(number)
            version = repository / _name(number) / "1"
            version.mkdir(parents=True)
            onnx.save(model, version / "model.onnx")
            version.with_name("config.pbtxt").write_text('backend: "brisk"\n')
            references.append(reference)
        variables = {"BRISK_CACHE_DIR": str(cache), CACHE_LIMIT: str(limit_mib)}
        with benchmark_server(repository, variables, ["--model-control-mode=explicit"]) as server:
            yield server, references, cache


def _visit(
    client: InferenceServerClient,
    number: int,
    reference: Reference,
    measured: Window,
    faults: list[str],
) -> None:
    """Load an entry and ask it; whatever is wrong becomes a line of ``faults``."""
    x = np.random.default_rng(10**6 + number).standard_normal((1 + number % 3, FEATURES))
    given = InferInput("x", list(x.shape), "FP32")
    given.set_data_from_numpy(x.astype(np.float32))
    expected = reference(x.astype(np.float32))
    began_s = time.perf_counter()
    try:
        client.load_model(_name(number))
        measured.loads_s.append(time.perf_counter() - began_s)
        for asked in range(ASKED):
            answer = client.infer(_name(number), [given]).as_numpy("y")
            if not asked:
                measured.firsts_s.append(time.perf_counter() - began_s)
            if not np.allclose(answer, expected, rtol=TOLERANCE, atol=TOLERANCE):
                faults.append(f"{_name(number)}: a wrong answer")
    except FAILURES as error:
        faults.append(f"{_name(number)}: {error}")


def _leave(client: InferenceServerClient, number: int, faults: list[str]) -> None:
    try:
        client.unload_model(_name(number))
    except FAILURES as error:
        faults.append(f"{_name(number)}: {error}")


def _disk_bytes(cache: Path) -> int:
    return sum(each.size_bytes for each in kept_artefacts({"BRISK_CACHE_DIR": str(cache)}))


def _row(entries: int, measured: Window, server: BenchmarkServer) -> dict[str, Any]:
    memory = memory_of(processes_of(server.place.base))
    by_kind = {
        f"{kind}_mib": sum(each.pss_bytes for each in memory if _kind(each.kind) == kind) / 2**20
        for kind in KINDS
    }
    return {
        "what": "entries",
        "entries": entries,
        "load_ms": _median_ms(measured.loads_s),
        "first_ms": _median_ms(measured.firsts_s),
        "disk_mib": measured.disk_bytes / 2**20,
        **by_kind,
        "mib": sum(each.pss_bytes for each in memory) / 2**20,
    }


def _median_ms(values_s: Sequence[float]) -> float | None:
    """Return the median; None of a window in which every load has failed."""
    return statistics.median(values_s) * 1e3 if values_s else None


def _kind(kind: str) -> str:
    return "stub" if kind in ("launcher", "fork server") else kind


def _check(report: Report, faults: Sequence[str], limit_mib: int) -> None:
    """Add the checks: faults, the disk's limit, which is reached, and growth."""
    text = "wrong or missing answers, loads that failed"
    report.checks.append(check_limit(text, len(faults), "<=", 0))
    report.notes += faults[:10]
    most = max(row["disk_mib"] for row in report.rows)
    for comparison, limit in (("<=", 1.0), (">=", REACHED)):
        text = "the artefacts' disk over its limit"
        report.checks.append(check_limit(text, most / limit_mib, comparison, limit))
    steady = report.rows[2:] if len(report.rows) >= 4 else report.rows
    halves = steady[: len(steady) // 2], steady[len(steady) // 2 :]
    for column, (what, limit) in MOST_GROWTH.items():
        found = [[row[column] for row in half if row[column]] for half in halves]
        growth: float | str = "nothing was measured"
        if all(found):
            first, second = map(statistics.median, found)
            growth = second / first
        text = f"{what}, the second half of the entries over the first"
        report.checks.append(check_limit(text, growth, "<=", limit))
