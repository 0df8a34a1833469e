"""The workloads, side against side, in interleaved rounds (REEF, 7.2 and figure 11)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from rich.console import Console

from brisk_client.disb.networks import NETWORKS
from brisk_client.disb.plan import DEFAULT_POLICY, RT_ONLY, TRITON, Plan
from brisk_client.disb.sampling import (
    WorkloadSample,
    describe,
    median_ratio,
    sample,
    short_row,
    summarise_side,
)
from brisk_client.disb.served import REALTIME, closed_loop
from brisk_client.disb.sides import SUFFIXES, Side, entry_name, running_sides
from brisk_client.disb.wire import wait_until_settled
from brisk_client.disb.workloads import fit, realtime_only
from brisk_client.report import Report, check_limit
from brisk_client.workload.description import Workload
from brisk_client.workload.requests import UNLIMITED, request_sender

WARM_UPS = 12
"""Before the first run of a side: a worker tries thread counts in its first eight runs."""

REHEARSAL_S = 10.0
"""Of each side before the first round, at most."""

SCREENING = "screening"
"""What the row of a short run of Triton's has in the column ``stage``."""

_CALIBRATION = 40
"""Runs of each network by which a round's arrivals are fitted, after WARM_UPS."""

MEAN_LIMIT, P99_LIMIT = 1.02, 1.10
"""Of the default policy's real-time latency over RT-only's, on PROTECTED."""

PROTECTED = ("C", "D", "E", "REAL")

SHARES = {"A": 0.9, "C": 0.9, "D": 0.75, "E": 0.75}
"""Least overall throughput of the default policy over that of ``shared``."""

BASELINE_GAIN = 3.0
"""The p99 of Triton's best setting over the default policy's, at least, on BASELINE_WORKLOADS."""

BASELINE_WORKLOADS = ("C", "D")

SEVERAL = 2.0
"""Overall throughput over RT-only's, at least, on ROOMY (REEF: 3 to 7.7)."""

ROOMY = ("E", "REAL")


def compare(report: Report, workloads: Mapping[str, Workload], plan: Plan) -> None:
    """Add a row for each workload and side, and the checks that these allow.

    Raises WorkloadFailedError, ServerFailedError.
    """
    wanted = sorted(
        {(t.model, t.job_class or REALTIME) for w in workloads.values() for t in w.tasks}
    )
    with running_sides(plan, wanted) as running:
        for side in running:
            _settle(side, wanted)
        for name, workload in workloads.items():
            _measure(report, running, workload, name, plan)
    add_checks(report)


def _measure(
    report: Report, running: Sequence[Side], workload: Workload, name: str, plan: Plan
) -> None:
    """Rounds of all sides, forwards and backwards in turns, after a rehearsal that does not count.

    Arrivals are fitted before each round, the same for all its sides: a machine that others use
    may be half as fast a minute later, and its capacity is what the paper's share is of. In the
    rehearsal policies find out by how much best-effort work slows each network down, which REEF
    measures ahead of all (5.2). Each run is told on standard error, so that a benchmark cut short
    has said something.
    """
    networks = sorted({task.model for task in realtime_only(workload).tasks})
    alone = next(each for each in running if each.name == RT_ONLY)

    def taken(stage: str, side: Side, fitted: Workload, warm_ups: int) -> WorkloadSample:
        found = sample(side, fitted, warm_ups)
        console = Console(stderr=True, highlight=False)
        console.print(f"{name}, {stage}, {side.name}: {describe(found)}", soft_wrap=True)
        return found

    first_s = _calibrate(alone, networks)
    rehearsed, _ = fit(workload, first_s, min(plan.seconds, REHEARSAL_S))
    taking_part = [side for side in running if not (side.is_baseline and plan.screens)]
    for side in taking_part:
        taken("rehearsal", side, rehearsed, WARM_UPS)
    screened: dict[str, dict[str, Any]] = {}
    if plan.screens:
        shorter, _ = fit(workload, first_s, plan.baseline_s)
        baselines = {side.name: side for side in running if side.is_baseline}
        for side in baselines.values():
            screened[side.name] = short_row(taken(SCREENING, side, shorter, WARM_UPS))
        if baselines:
            taking_part.append(baselines[best_screened(screened)])
    samples: dict[str, list[WorkloadSample]] = {side.name: [] for side in taking_part}
    factors: list[float] = []
    alone_s: list[Mapping[str, float]] = []
    for number in range(1, plan.rounds + 1):
        alone_s.append(_calibrate(alone, networks))
        fitted, factor = fit(workload, alone_s[-1], plan.seconds)
        factors.append(round(factor, 3))
        for side in taking_part if number % 2 else reversed(taking_part):
            samples[side.name].append(taken(f"round {number}", side, fitted, 1))
    report.notes.append(_told(name, factors, alone_s))
    for side_name in samples:
        row = {"workload": name, "side": side_name, **summarise_side(samples, side_name)}
        report.rows.append({**row, "round_arrivals": factors})
    for side_name, columns in screened.items():
        row = {"workload": name, "side": side_name, "stage": SCREENING, **columns}
        report.rows.append(row)


def best_screened(screened: Mapping[str, Mapping[str, Any]]) -> str:
    """The side with the least p90 of its short run; one without an answer only where all are."""
    return min(screened, key=lambda side: screened[side].get("p90_ms", float("inf")))


def best_baseline(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The row of least p99 among Triton's; None where none has answers.

    One with too few answers for a p99, where its p90 is the least: it may be the best one, and
    what is compared with it says so.
    """
    answered = [row for row in rows if "p90_ms" in row]
    if not answered:
        return None
    quickest = min(answered, key=lambda row: row["p90_ms"])
    told = [row for row in answered if not isinstance(row["p99_ms"], str)]
    if isinstance(quickest["p99_ms"], str) or not told:
        return quickest
    return min(told, key=lambda row: row["p99_ms"])


def _told(name: str, factors: Sequence[float], alone_s: Sequence[Mapping[str, float]]) -> str:
    """``factors``: how many times as far apart as in the paper a round's arrivals were;
    ``alone_s``: its calibration.
    """
    times = []
    for network in alone_s[0]:
        median_s = statistics.median(each[network] for each in alone_s)
        times.append(f"{network} {median_s * 1e3:.1f} ({NETWORKS[network].paper_ms})")
    apart = ", ".join(f"{factor:.2f}" for factor in factors)
    return (
        f"{name}: arrivals {apart} times as far apart as in the paper, a round each, so that "
        f"the real-time clients need the same share of the machine; {len(factors)} "
        f"rounds after a rehearsal that does not count; ms in turns, without best-effort work "
        f"(paper's): {', '.join(times)}"
    )


def _settle(side: Side, wanted: Sequence[tuple[str, str]]) -> None:
    """Until Brisk exchanges no kernels any more; the baseline has none to exchange."""
    if side.is_baseline:
        return
    with grpc.insecure_channel(side.server.grpc, options=UNLIMITED) as channel:
        for network, job_class in wanted:
            entry = entry_name(network, job_class)
            request_sender(channel, closed_loop(entry, job_class))()
            alias = next(entry_name(network, each) for each in SUFFIXES if each != job_class)
            wait_until_settled(side.server.place, entry, job_class, alias)


def _calibrate(side: Side, networks: Sequence[str]) -> dict[str, float]:
    """Latency of each of ``networks`` without best-effort work, one request after the other.

    They take turns, as they will in the workload: on a CPU each drives the others' weights out of
    the caches. Medians: half of the runs of a workload are slower, as half of these are.
    """
    with grpc.insecure_channel(side.server.grpc, options=UNLIMITED) as channel:
        send = {
            name: request_sender(channel, closed_loop(entry_name(name, REALTIME), REALTIME))
            for name in networks
        }
        times_s: dict[str, list[float]] = {name: [] for name in networks}
        for _ in range(WARM_UPS + _CALIBRATION):
            for name in networks:
                before_s = time.monotonic()
                send[name]()
                times_s[name].append(time.monotonic() - before_s)
    return {name: statistics.median(found[WARM_UPS:]) for name, found in times_s.items()}


def add_checks(report: Report) -> None:
    """Checks of what the rows of ``report`` cover."""
    measured = [row for row in report.rows if "workload" in row and row.get("stage") != SCREENING]
    rows = {(row["workload"], row["side"]): row for row in measured}

    def check(workload: str, name: str, value: float | str, comparison: str, limit: float) -> None:
        report.checks.append(check_limit(f"{workload}: {name}", value, comparison, limit, 3))

    for workload in dict.fromkeys(name for name, _ in rows):
        ours = rows.get((workload, DEFAULT_POLICY))
        if ours is None or "mean_ratio" not in ours:
            continue
        if workload in PROTECTED:
            check(workload, "real-time mean / RT-only", ours["mean_ratio"], "<=", MEAN_LIMIT)
            check(workload, "real-time p99 / RT-only", ours["p99_ratio"], "<=", P99_LIMIT)
        shared = rows.get((workload, "shared"))
        if shared is not None and workload in SHARES:
            share = median_ratio(ours["round_per_s"], shared["round_per_s"])
            if share is not None:
                check(workload, "throughput / shared", share, ">=", SHARES[workload])
        if workload in ROOMY:
            check(workload, "throughput / RT-only", ours["throughput_ratio"], ">=", SEVERAL)
        theirs = [
            row for (of, side), row in rows.items() if of == workload and side.startswith(TRITON)
        ]
        best = best_baseline(theirs)
        if workload in BASELINE_WORKLOADS and best is not None:
            values = best["p99_ms"], ours["p99_ms"]
            lacking = next((value for value in values if isinstance(value, str)), None)
            name = f"real-time p99 of {best['side']}, Triton's best, / ours"
            check(workload, name, lacking or values[0] / values[1], ">=", BASELINE_GAIN)
