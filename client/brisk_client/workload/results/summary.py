"""The outcome of a run as a report: a row per task, checks, what the generator cost."""

from __future__ import annotations

from typing import Any

from brisk_client.benchmarks.harness.machine import describe_machine, installed_versions
from brisk_client.report import Check, Report
from brisk_client.tails import shortage
from brisk_client.workload.results.histogram import Histogram
from brisk_client.workload.results.outcome import GeneratorCost, RunOutcome, TaskOutcome

LAG_LIMIT_MS = 1.0
"""Of the generator's own lateness, above which latencies are in doubt: of its p99, or of the
greatest where the requests are too few for one."""

NOTES = (
    "latency: from when a request was due to its answer; dropped: arrivals that were stale when "
    "their client could send (DISB's rule), in no latency",
    "lag: from when the generator could and should have sent to when it did",
    "no p99 is told of fewer than 1,000 answers, no p99.9 of fewer than 10,000",
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
        report.checks.append(_lag_check(cost))
        report.notes.append(
            f"generator of {', '.join(cost.tasks)}: {cost.processor_s:.2f} s of processor time in "
            f"{outcome.duration_s:g} s, {cost.processor_s / max(1, cost.lag.count) * 1e3:.2f} ms "
            "a request"
        )
    report.notes += [f"{count} × {text:.300}" for text, count in outcome.errors.items()]
    return report


def _lag_check(cost: GeneratorCost) -> Check:
    """Of the p99; of the greatest, which is no less, where the requests are too few for it."""
    name, found_ns = "lag p99 ms", cost.lag.quantile_ns(0.99)
    if found_ns is None:
        lacking = shortage(cost.lag.count, 0.99)
        name, found_ns = f"greatest lag ms, {lacking} for a p99", float(cost.lag.greatest_ns)
    lag_ms = found_ns / 1e6
    label = f"generator's {name} ({', '.join(cost.tasks)})"
    return Check(label, lag_ms, f"<= {LAG_LIMIT_MS:g}", lag_ms <= LAG_LIMIT_MS)


def _row(task: TaskOutcome, duration_s: float) -> dict[str, Any]:
    return {
        "task": task.task,
        "class": task.job_class or "(entry's)",
        "answers": task.answered,
        "failed": task.failed,
        "dropped": task.dropped,
        "per_s": task.answered / duration_s,
        **latency_columns(task.latency),
        "lag_p99_ms": _tail_ms(task.lag, 0.99),
        "lag_max_ms": task.lag.greatest_ns / 1e6,
    }


def latency_columns(latency: Histogram) -> dict[str, float | str]:
    """Mean, p50, p99, p99.9 and the longest, in ms; empty where nothing was answered.

    In the place of a tail that has too few answers stands what it lacks.
    """
    mean_ns, median_ns = latency.mean_ns(), latency.quantile_ns(0.5)
    if mean_ns is None or median_ns is None:
        return {}
    return {
        "mean_ms": mean_ns / 1e6,
        "p50_ms": median_ns / 1e6,
        "p99_ms": _tail_ms(latency, 0.99),
        "p999_ms": _tail_ms(latency, 0.999),
        "max_ms": latency.greatest_ns / 1e6,
    }


def _tail_ms(times: Histogram, share: float) -> float | str:
    found_ns = times.quantile_ns(share)
    return shortage(times.count, share) if found_ns is None else found_ns / 1e6
