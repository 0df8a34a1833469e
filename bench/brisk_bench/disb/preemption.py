"""Preemption latency: the wait of a real-time request until it runs, and its cost (REEF, 7.3)."""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from brisk_bench.disb.networks import NETWORKS, PROBE_WIDTH, build_chain, chain_of
from brisk_bench.disb.plan import DEFAULT_POLICY, Plan
from brisk_bench.disb.served import Asked, UrgentClient, Way, asked_without_pause
from brisk_bench.disb.sides import (
    brisk_server,
    entry_name,
    runtime_variables,
    save_models,
    triton_server,
    write_brisk,
    write_triton,
)
from brisk_bench.disb.wire import ProbedModel, Timed, interrupt, probed_runtime
from brisk_bench.harness.report import Report, check_limit
from brisk_bench.harness.served_server import BenchmarkServer
from brisk_bench.harness.surroundings import wait_until_settled
from brisk_bench.harness.tails import percentile_columns

URGENT = "densenet"
"""The real-time network: the shortest of the five."""

LAYERS_MS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)

LIMIT_US = 200.0
"""The most of the default policy's p99 latency from a stub's ``execute`` to the first segment."""

DEPENDENCE_LIMIT = 2.0
"""The most of p50 at the longest segments over p50 at the shortest: it does not depend on them."""

CLIENT, EXECUTE, IN_WORKER = "from client", "from execute", "in worker"
"""The points where a way to the first segment begins: values of the column ``part``."""

EXCESS = "excess"
"""The fourth value of the column ``part``: from sending to answer, beyond the time alone."""

SETTLING_RUNS = 10

WARM_UPS = 20
"""Warm-up runs of the real-time entry: a worker tries thread counts in its first eight runs."""

RESTORED = 20
"""Runs that are interrupted once each, to measure the restore overhead."""

NOTES = (
    "preemption latency: a client sends a real-time request over gRPC through a real Triton, 5 to "
    "25 ms after the last answer, while another process asks the best-effort entry without pause; "
    "from client: from its sending to the beginning of the first segment in the worker; from "
    "execute: from when Triton hands the request to its stub, before anything of it is read, "
    "staged or copied; in worker: from when the worker has read it, which is what REEF "
    "measures; alone: the same without best-effort work",
    "excess: from the client's sending to its answer, less the median of that alone (whose "
    "columns are of the whole); the same event on all sides, Triton's own included, whose first "
    "segment nobody sees; Brisk's requests are recorded as 'brisk trace' does, beside and alone, "
    "which costs some microseconds a segment",
    "restore overhead: how much longer an interrupted best-effort run took than one alone and the "
    "real-time request together, without Triton; below 0 where both ran at once",
)


def measure_networks(report: Report, plan: Plan) -> None:
    """Add rows of figures 12(b) and 15(b): each network interrupted by the shortest one."""
    models = {name: NETWORKS[name].build() for name in dict.fromkeys((URGENT, *plan.networks))}
    report.rows += [{"figure": "12", **row} for row in _measure(plan, models, plan.networks)]
    for policy in plan.probed:
        with probed_runtime(models, runtime_variables(policy, plan.threads)) as probed:
            probed[URGENT].settle("realtime", SETTLING_RUNS)
            for name in plan.networks:
                row = {"figure": "15", "policy": policy, "best_effort": name}
                report.rows.append(row | _restoring(probed[URGENT], probed[name]))


def measure_layers(report: Report, plan: Plan) -> None:
    """Add rows of figure 13: best-effort segments of LAYERS_MS, or some if ``plan.quick``."""
    variables = {"BRISK_THREADS": str(plan.threads)}
    probe_layers = 8
    with probed_runtime({"probe": build_chain(PROBE_WIDTH, probe_layers)}, variables) as probed:
        runs = [probed["probe"].ask("normal").execution_ns for _ in range(SETTLING_RUNS + 5)]
    layer_ms = min(runs) / 1e6 / probe_layers
    lengths = {f"chain_{ms:g}_ms": ms for ms in LAYERS_MS[:: 3 if plan.quick else 1]}
    models = {name: chain_of(ms, layer_ms) for name, ms in lengths.items()}
    models[URGENT] = NETWORKS[URGENT].build()
    for row in _measure(plan, models, list(lengths)):
        report.rows.append({"figure": "13", **row, "layer_ms": lengths[row["best_effort"]]})


def _measure(
    plan: Plan, models: Mapping[str, onnx.ModelProto], networks: Sequence[str]
) -> list[dict[str, Any]]:
    """Return rows of each side and each of ``networks``, which is the best-effort work."""
    rows: list[dict[str, Any]] = []
    entries = [(URGENT, "realtime"), *((name, "besteffort") for name in networks)]
    with tempfile.TemporaryDirectory(prefix="brisk-preemption-") as folder:
        files = save_models(Path(folder) / "models", models)
        for policy in plan.probed:
            repository = Path(folder) / policy
            write_brisk(repository, files, entries)
            with brisk_server(repository, policy, plan.threads) as server:
                rows += _brisk_rows(policy, server, networks, plan.requests_of(policy))
        for number, setting in enumerate(plan.settings):
            repository = Path(folder) / f"triton-{number}"
            write_triton(repository, files, entries, setting, plan.threads)
            with triton_server(repository, setting, plan) as server:
                count = plan.requests_of(setting.side)
                rows += _triton_rows(setting.side, server, networks, count)
    return rows


def _brisk_rows(
    policy: str, server: BenchmarkServer, networks: Sequence[str], count: int
) -> Iterator[dict[str, Any]]:
    with UrgentClient(server, entry_name(URGENT, "realtime"), seed=1) as client:
        client.ask()
        wait_until_settled(server.place, entry_name(URGENT, "realtime"), "realtime")
        client.ask_after_pauses(WARM_UPS)
        alone = client.ask_traced(count)
        for name in networks:
            entry = entry_name(name, "besteffort")
            with asked_without_pause(server.grpc, entry):
                client.ask_after_pauses(WARM_UPS)
                wait_until_settled(server.place, entry, "besteffort")
                beside = client.ask_traced(count)
            for row in way_rows(beside, alone):
                yield {"policy": policy, "best_effort": name, **row}


def _triton_rows(
    side: str, server: BenchmarkServer, networks: Sequence[str], count: int
) -> Iterator[dict[str, Any]]:
    with UrgentClient(server, entry_name(URGENT, "realtime"), seed=1) as client:
        client.ask_after_pauses(WARM_UPS)
        alone = client.ask_after_pauses(count)
        for name in networks:
            with asked_without_pause(server.grpc, entry_name(name, "besteffort")):
                client.ask_after_pauses(WARM_UPS)
                beside = client.ask_after_pauses(count)
            yield {"policy": side, "best_effort": name, **excess_row(beside, alone)}


def way_rows(beside: Sequence[Way], alone: Sequence[Way]) -> list[dict[str, Any]]:
    """Return a row for each part of the way to the first segment, and that of the excess."""
    rows = []
    for part in (CLIENT, EXECUTE, IN_WORKER):
        column = f"{part.replace(' ', '_')}_ns"
        rows.append(_row(part, *([getattr(w, column) for w in ways] for ways in (beside, alone))))
    return [*rows, excess_row([way.asked for way in beside], [way.asked for way in alone])]


def excess_row(beside: Sequence[Asked], alone: Sequence[Asked]) -> dict[str, Any]:
    """Return the row of times from sending to answer, less the median of ``alone``.

    The row's columns of ``alone`` are of the whole time.
    """
    alone_ns = [each.total_ns for each in alone]
    median_ns = statistics.median(alone_ns)
    return _row(EXCESS, [each.total_ns - median_ns for each in beside], alone_ns)


def _row(part: str, beside_ns: Sequence[float], alone_ns: Sequence[float]) -> dict[str, Any]:
    alone = percentile_columns(alone_ns, ("p50", "p99"), "us", 1e-3)
    return {
        "part": part,
        "requests": len(beside_ns),
        **percentile_columns(beside_ns, ("p50", "p90", "p99"), "us", 1e-3),
        "worst_us": max(beside_ns) / 1e3,
        **{f"alone_{name}": value for name, value in alone.items()},
    }


def _restoring(urgent: ProbedModel, background: ProbedModel) -> dict[str, Any]:
    background.settle("besteffort", 3)
    alone = [background.ask("besteffort") for _ in range(5)]
    alone_ms = statistics.median(each.execution_ns for each in alone) / 1e6
    longest_s = 0.9 * min(each.total_ns for each in alone) / 1e9
    source = random.Random(1)
    restores = []
    for _ in range(RESTORED):
        moment_s = source.random() * longest_s
        request, run = interrupt(urgent, background, "besteffort", moment_s)
        if overlap := overlap_ns(request, run):
            restores.append((run.execution_ns - overlap) / 1e6 - alone_ms)
    row: dict[str, Any] = {"interrupted": len(restores), "alone_ms": alone_ms}
    if restores:
        row["restore_ms"] = statistics.median(restores)
        row["restore_percent"] = 100 * row["restore_ms"] / alone_ms
    return row


def overlap_ns(urgent: Timed, background: Timed) -> int:
    """Return how long the urgent request ran within the best-effort run; 0 if it did not."""
    ended_ns = background.started_ns + background.execution_ns
    end_ns = min(urgent.started_ns + urgent.execution_ns, ended_ns)
    return max(0, end_ns - max(urgent.started_ns, background.started_ns))


def add_checks(report: Report) -> None:
    """Add checks of the default policy's rows of figures 12 and 13."""
    ours = [row for row in report.rows if row.get("policy") == DEFAULT_POLICY]
    for figure, over in (("12", "all networks"), ("13", "all segment lengths")):
        rows = [row for row in ours if row["figure"] == figure]
        for part in (EXECUTE, IN_WORKER) if rows else ():
            name = f"{part} to the first segment, p99 over {over}, us"
            values = [row["p99_us"] for row in rows if row["part"] == part]
            lacking = next((value for value in values if isinstance(value, str)), None)
            report.checks.append(check_limit(name, lacking or max(values), "<=", LIMIT_US, 2))
    for part in (CLIENT, EXECUTE):  # rows go from the shortest segments to the longest
        lengths = [row for row in ours if row["figure"] == "13" and row["part"] == part]
        if len(lengths) > 1:
            first, last = lengths[0], lengths[-1]
            compared = f"segments of {last['layer_ms']:g} ms / of {first['layer_ms']:g} ms"
            name = f"{part} to the first segment, p50, {compared}"
            growth = last["p50_us"] / first["p50_us"]
            report.checks.append(check_limit(name, growth, "<=", DEPENDENCE_LIMIT, 2))
