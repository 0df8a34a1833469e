"""`brisk bench pressure`: many clients at once on the sample models, for a minute.

64 clients (half HTTP, half gRPC), each with one request in flight, ask a real server without
pause. None may see an error or a wrong answer, and the server side must not grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brisk_bench.harness.command_line import (
    UnusableArgumentError,
    benchmark_parser,
    run_command,
)
from brisk_bench.harness.machine import new_report
from brisk_bench.harness.report import Report, plot_bars
from brisk_bench.harness.served_entries import SAMPLES
from brisk_bench.harness.served_server import benchmark_server
from brisk_bench.harness.tails import quantile, tail_or_shortage
from brisk_bench.pressure.clients import pressure_clients
from brisk_bench.pressure.sampling import report_memory, sampled_memory

GROWTH_LIMIT = 0.02

WINDOW_S = 10
"""Seconds of the first and of the last window, whose means are compared."""

LEAST_S = 3.0
"""The shortest time: the two windows are at most a third of it."""

WARM_UP_S = 40.0
"""The time in which buffers and heaps reach the size that so many requests at once need."""

NOTES = (
    "rss: resident bytes of all processes of the kind, shared pages counted in each; memfd: "
    "Brisk's tensor memory, each region once; dev_shm: all files in /dev/shm (Triton's own)",
    f"growth: mean of the last window over the mean of the first; {WARM_UP_S:g} s of warm-up by "
    "the same clients, first all of them on one model at a time, come before both",
)


def run(quick: bool = False, clients: int = 64, seconds: float = 60.0) -> Report:
    """Ask with ``clients`` for ``seconds`` (12 where ``quick``) after the warm-up.

    Raises UnusableArgumentError for fewer seconds than LEAST_S.
    """
    seconds = 12.0 if quick else seconds
    if seconds < LEAST_S:
        raise UnusableArgumentError(f"--seconds {seconds:g}: expected at least {LEAST_S:g}")
    packages = ("torch", "tritonclient", "numpy")
    report = new_report("pressure", packages, NOTES, clients=clients, seconds=seconds)
    with (
        benchmark_server(SAMPLES, {}) as server,
        pressure_clients(server, clients, WARM_UP_S, seconds) as outcome_of,
        sampled_memory(server, WARM_UP_S, seconds) as samples,
    ):
        outcome = outcome_of()
    latency_s = {
        model: [each.seconds for each in answers] for model, answers in outcome.answered.items()
    }
    everything = [each for values in latency_s.values() for each in values]
    for model, values in {"all models": everything, **latency_s}.items():
        report.rows.append({"kind": "latency", "what": model, **_latency(values, seconds)})
    outcome.judge(report, "errors")
    report_memory(report, samples, min(WINDOW_S, int(seconds / 3)), GROWTH_LIMIT)
    return report


def main(arguments: Sequence[str]) -> int:
    parser = benchmark_parser("pressure", __doc__, "twelve seconds")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    return run_command(parser, arguments, run, _plot)


def _plot(report: Report, folder: Path) -> None:
    plot_bars(report, folder, "p50_ms", "kind", "what")
    plot_bars(report, folder, "last_mib", "kind", "what")


def _latency(values: Sequence[float], seconds: float) -> dict[str, Any]:
    row: dict[str, Any] = {"answers": len(values), "per_s": len(values) / seconds}
    if values:
        row["p50_ms"] = quantile(values, 0.5) * 1e3
        row["p99_ms"] = tail_or_shortage(values, 0.99, 1e3)
    return row
