"""A run on the terminal while it goes on; then as a report, and as a plot."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table

from brisk_bench.harness.machine import new_report
from brisk_bench.harness.report import Check, Report, check_limit, save_figure, subplots
from brisk_bench.harness.tails import percentile_columns, shortage, tail, tail_or_shortage
from brisk_client.workload.description import Workload
from brisk_client.workload.results import GeneratorOutcome, RunOutcome, TaskOutcome
from brisk_client.workload.runner import Counts

LAG_LIMIT_MS = 1.0
"""The most of the generator's own lag, above which latencies are in doubt: of its p99, or the
greatest if the requests are too few for one."""

NOTES = (
    "latency: from when a request was due to its answer; dropped: arrivals that were stale when "
    "their client could send (DISB's rule), in no latency",
    "lag: from when the generator could and should have sent to when it did",
    "no p99 is told of fewer than 1,000 answers, no p99.9 of fewer than 10,000",
)


def summarise_run(name: str, outcome: RunOutcome) -> Report:
    """Return a run's report.

    Its checks: every request was answered, and the generator sent on time.
    """
    report = new_report(name, ("tritonclient", "grpcio"), NOTES)
    report.rows = [_row(task, outcome.duration_s) for task in outcome.tasks]
    failed = sum(task.failed for task in outcome.tasks)
    answered = sum(task.answered for task in outcome.tasks)
    report.checks.append(Check("requests without an answer", failed, "0", failed == 0))
    report.checks.append(check_limit("answers", answered, ">", 0))
    for generator in outcome.generators:
        _judge_generator(report, generator, outcome.duration_s)
    for generator in outcome.generators:
        report.notes += [f"{count} × {text:.300}" for text, count in generator.errors.items()]
    return report


def _judge_generator(report: Report, generator: GeneratorOutcome, duration_s: float) -> None:
    """Check the p99 of a generator's lag, or the greatest lag, which is no less, if requests are
    too few for a p99."""
    names = ", ".join(task.task for task in generator.tasks)
    lags_ns = [lag_ns for task in generator.tasks for lag_ns in task.lag_ns]
    name, found_ns = "lag p99 ms", tail(lags_ns, 0.99)
    if found_ns is None:
        lacking = shortage(len(lags_ns), 0.99)
        name, found_ns = f"greatest lag ms, {lacking} for a p99", max(lags_ns, default=0)
    label = f"generator's {name} ({names})"
    report.checks.append(check_limit(label, found_ns / 1e6, "<=", LAG_LIMIT_MS))
    if not report.checks[-1].ok:
        report.notes.append(
            f"generator of {names}: it sent late itself, so that the latencies are not the "
            "server's alone and the run counts as failed: leave it a core, or send from another "
            "machine"
        )
    each_ms = generator.processor_s / max(1, len(lags_ns)) * 1e3
    report.notes.append(
        f"generator of {names}: {generator.processor_s:.2f} s of processor time in "
        f"{duration_s:g} s, {each_ms:.2f} ms a request"
    )


def _row(task: TaskOutcome, duration_s: float) -> dict[str, Any]:
    latency: dict[str, float | str] = {}
    if times_ns := task.latency_ns:
        latency = {
            "mean_ms": statistics.fmean(times_ns) / 1e6,
            **percentile_columns(times_ns, ("p50", "p99", "p999"), "ms", 1e-6),
            "max_ms": max(times_ns) / 1e6,
        }
    return {
        "task": task.task,
        "class": task.job_class or "(entry's)",
        "answers": task.answered,
        "failed": task.failed,
        "dropped": task.dropped,
        "per_s": task.answered / duration_s,
        **latency,
        "lag_p99_ms": tail_or_shortage(task.lag_ns, 0.99, 1e-6),
        "lag_max_ms": max(task.lag_ns, default=0) / 1e6,
    }


def plot_run(name: str, outcome: RunOutcome, folder: Path) -> list[Path]:
    """Plot one file: for each task, the share of requests that took longer than so much."""
    figure, axes = subplots(figsize=(7, 4))
    for task in outcome.tasks:
        if count := len(task.latency_ns):
            longer = 1 - np.arange(1, count + 1) / count
            axes.step(np.sort(task.latency_ns) / 1e6, longer, where="post", label=task.task)
    axes.set(xscale="log", yscale="log", title=name, xlabel="latency, ms")
    axes.set_ylabel("share of requests that took longer")
    axes.legend(fontsize="small")
    return [save_figure(figure, folder / f"{name}-latency.png")]


@contextlib.contextmanager
def run_progress(workload: Workload, console: Console) -> Iterator[Callable[[Counts], None]]:
    """Show a table of counts; give a function that draws it anew.

    Nothing is drawn if the output is no terminal.
    """
    begun_s: float | None = None

    def table(counts: Counts) -> Table:
        past_s = 0.0 if begun_s is None else time.monotonic() - begun_s
        drawn = Table(title=f"{min(past_s, workload.duration_s):.0f} of {workload.duration_s:g} s")
        for column in ("task", "class", "model", "answered", "failed", "dropped"):
            drawn.add_column(column, justify="right" if column.endswith("ed") else "left")
        for task in workload.tasks:
            numbers = (str(number) for number in counts.get(task.name, (0, 0, 0)))
            drawn.add_row(task.name, task.job_class or "", task.model, *numbers)
        return drawn

    with Live(table({}), console=console, auto_refresh=False, transient=True) as live:

        def update(counts: Counts) -> None:
            nonlocal begun_s
            begun_s = begun_s or time.monotonic()
            live.update(table(counts), refresh=True)

        yield update
