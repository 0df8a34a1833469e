"""Networks of one class, each asked without pause: one run at a time, and two side by side."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Mapping, Sequence

from brisk_client.disb.networks import NETWORKS
from brisk_client.disb.probe import ProbedModel, Timed, probed_runtime
from brisk_client.report import Report
from brisk_client.tails import tail_or_shortage

SETTLING_RUNS = 40
"""Until a worker has chosen its numbers of threads, and knows what each of them takes."""

JOB_CLASS = "realtime"

NOTE = (
    "loops: every network asked without pause, one client each, all real-time, without Triton; "
    "answers a second of all, medians over rounds in turns; ms of all rounds together"
)


def measure_loops(
    report: Report, networks: Sequence[str], rounds: int, seconds: float, threads: int
) -> None:
    """A row for each number of concurrent runs."""
    models = {name: NETWORKS[name].build() for name in networks}
    with contextlib.ExitStack() as stack:
        sides = {}
        for runs in (1, 2):
            variables = {"BRISK_CONCURRENT_RUNS": str(runs), "BRISK_THREADS": str(threads)}
            sides[runs] = stack.enter_context(probed_runtime(models, variables))
            for model in sides[runs].values():
                model.settle(JOB_CLASS, SETTLING_RUNS)
        answered: dict[int, list[Timed]] = {runs: [] for runs in sides}
        paces: dict[int, list[float]] = {runs: [] for runs in sides}
        for number in range(rounds):
            order = list(sides) if number % 2 == 0 else list(reversed(sides))
            for runs in order:
                found = _ask_all(sides[runs], seconds)
                answered[runs] += found
                paces[runs].append(len(found) / seconds)
    for runs in sides:
        times_ms = [each.total_ns / 1e6 for each in answered[runs]]
        pace = statistics.median(paces[runs])
        report.rows.append(
            {
                "figure": "loops",
                "concurrent_runs": runs,
                "per_s": pace,
                "round_per_s": paces[runs],
                "pace_ratio": pace / statistics.median(paces[1]),
                "p50_ms": statistics.median(times_ms),
                "p99_ms": tail_or_shortage(times_ms, 0.99),
            }
        )
    report.notes.append(NOTE)


def _ask_all(models: Mapping[str, ProbedModel], seconds: float) -> list[Timed]:
    """Every model in a closed loop of its own; what was answered in time."""
    until_s = time.monotonic() + seconds
    found: list[Timed] = []

    def ask(model: ProbedModel) -> None:
        while time.monotonic() < until_s:
            found.append(model.ask(JOB_CLASS))

    threads = [threading.Thread(target=ask, args=(model,)) for model in models.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [each for each in found if each.answered_ns <= until_s * 1e9]
