"""The outcome of a run as a report: a row per task, checks, what the generator cost."""

from __future__ import annotations

from typing import Any

from brisk_client.benchmarks.machine import describe_machine, installed_versions
from brisk_client.report import Check, Report
from brisk_client.workload.histogram import Histogram
from brisk_client.workload.outcome import RunOutcome, TaskOutcome

LAG_LIMIT_MS = 1.0
"""p99 of the generator's own lateness above which latencies are in doubt."""

NOTES = (
    "latency: from when a request was due to its answer; dropped: arrivals that were stale when "
    "their client could send (DISB's rule), in no latency",
    "lag: from when the generator could and should have sent to when it did",
)


def summarise_run(name: str, outcome: RunOutcome) -> Report:
    """The checks: every request was answered, and the generator sent on time."""
    report = Report(
        name=name,
        machine=describe_machine(),
        versions=installed_versions("tritonclient", "grpcio"),
        rows=[_row(task, outcome.duration_s) for task in outcome.tasks],
        checks=[],
        notes=list(NOTES),
    )
    failed = sum(task.failed for task in outcome.tasks)
    answered = sum(task.answered for task in outcome.tasks)
    report.checks.append(Check("requests without an answer", failed, "0", failed == 0))
    report.checks.append(Check("answers", answered, "> 0", answered > 0))
    for cost in outcome.generators:
        lag_ms = _milliseconds(cost.lag.quantile_ns(0.99)) or 0.0
        label = f"generator's lag p99 ms ({', '.join(cost.tasks)})"
        report.checks.append(Check(label, lag_ms, f"<= {LAG_LIMIT_MS:g}", lag_ms <= LAG_LIMIT_MS))
        report.notes.append(
            f"generator of {', '.join(cost.tasks)}: {cost.processor_s:.2f} s of processor time in "
            f"{outcome.duration_s:g} s, {cost.processor_s / max(1, cost.lag.count) * 1e3:.2f} ms "
            "a request"
        )
    report.notes += [f"{count} × {text:.300}" for text, count in outcome.errors.items()]
    return report


def _row(task: TaskOutcome, duration_s: float) -> dict[str, Any]:
    return {
        "task": task.task,
        "class": task.job_class or "(entry's)",
        "answers": task.answered,
        "failed": task.failed,
        "dropped": task.dropped,
        "per_s": task.answered / duration_s,
        **latency_columns(task.latency),
        "lag_p99_ms": _milliseconds(task.lag.quantile_ns(0.99)) or 0.0,
    }


def latency_columns(latency: Histogram) -> dict[str, float]:
    """Mean, p50, p99, p99.9 and the longest, in ms; empty where nothing was answered."""
    found = {
        "mean_ms": latency.mean_ns(),
        "p50_ms": latency.quantile_ns(0.5),
        "p99_ms": latency.quantile_ns(0.99),
        "p999_ms": latency.quantile_ns(0.999),
        "max_ms": float(latency.greatest_ns) if latency.count else None,
    }
    return {name: value / 1e6 for name, value in found.items() if value is not None}


def _milliseconds(time_ns: float | None) -> float | None:
    return None if time_ns is None else time_ns / 1e6
