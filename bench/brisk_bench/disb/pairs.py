"""One network against another, both asked without pause (REEF, 7.4 and figure 16)."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Any

from brisk_bench.disb.networks import NETWORKS
from brisk_bench.disb.plan import DEFAULT_POLICY, Plan
from brisk_bench.disb.sides import runtime_variables
from brisk_bench.disb.wire import ProbedModel, Timed, probed_runtime
from brisk_bench.harness.report import Report, check_limit

SETTLING_RUNS = 10

NOTE = (
    "pairs: both networks asked without pause, without Triton; slowdown: mean real-time latency "
    "over that alone just before and after; best_effort_share: best-effort answers a second over "
    "those alone; alone_after_before: mean alone after over that before, which is 1 where the "
    "machine was quiet"
)


LIMIT = 1.02
"""The most of a pair's mean real-time latency over that alone (REEF, figure 16: 2 %)."""


def measure_pairs(report: Report, plan: Plan) -> None:
    """Add a row for each policy, real-time and best-effort network."""
    seconds = 0.5 if plan.quick else 1.0
    models = {name: NETWORKS[name].build() for name in plan.networks}
    for policy in (name for name in (DEFAULT_POLICY, "shared") if name in plan.sides):
        with probed_runtime(models, runtime_variables(policy, plan.threads)) as probed:
            for model in probed.values():
                for job_class in ("realtime", "besteffort"):
                    model.settle(job_class, SETTLING_RUNS)
            for urgent, background in itertools.product(plan.networks, repeat=2):
                names = {"realtime": urgent, "best_effort": background}
                row = _row(probed[urgent], probed[background], seconds)
                report.rows.append({"figure": "16", "policy": policy, **names, **row})
    report.notes.append(NOTE)
    add_checks(report)


def add_checks(report: Report) -> None:
    """Check the default policy's rows of figure 16: pairs within LIMIT, and the mean."""
    slowdowns = [
        row["slowdown"]
        for row in report.rows
        if row.get("figure") == "16" and row["policy"] == DEFAULT_POLICY
    ]
    if not slowdowns:
        return
    count = len(slowdowns)
    within = sum(each <= LIMIT for each in slowdowns)
    name = f"pairs with a real-time mean / alone of at most {LIMIT:g}, of {count}"
    report.checks.append(check_limit(name, within, ">=", count))
    name = f"real-time mean / alone, geometric mean of {count} pairs"
    mean = statistics.geometric_mean(slowdowns)
    report.checks.append(check_limit(name, mean, "<=", LIMIT, 3))


def _row(urgent: ProbedModel, background: ProbedModel, seconds: float) -> dict[str, Any]:
    before = _loop(urgent, "realtime", seconds / 2)
    background_alone_s = _mean_s(_loop(background, "besteffort", seconds / 2))
    ended = threading.Event()
    answered: list[Timed] = []

    def ask() -> None:
        while not ended.is_set():
            answered.append(background.ask("besteffort"))

    thread = threading.Thread(target=ask)
    begun_s = time.monotonic()
    thread.start()
    beside_s = _mean_s(_loop(urgent, "realtime", seconds))
    ended.set()
    last_s = time.monotonic()
    thread.join()
    after = _loop(urgent, "realtime", seconds / 2)
    alone_s = _mean_s([*before, *after])
    done = sum(each.answered_ns <= last_s * 1e9 for each in answered)
    return {
        "alone_ms": alone_s * 1e3,
        "beside_ms": beside_s * 1e3,
        "slowdown": beside_s / alone_s,
        "alone_after_before": _mean_s(after) / _mean_s(before),
        "best_effort_share": done / (last_s - begun_s) * background_alone_s,
    }


def _loop(model: ProbedModel, job_class: str, seconds: float) -> list[Timed]:
    """Send requests one after the other for ``seconds``, at least three."""
    runs: list[Timed] = []
    until_s = time.monotonic() + seconds
    while len(runs) < 3 or time.monotonic() < until_s:
        runs.append(model.ask(job_class))
    return runs


def _mean_s(requests: Sequence[Timed]) -> float:
    return statistics.fmean(each.total_ns for each in requests) / 1e9
