"""The workloads, side against side, in interleaved rounds (REEF, 7.2 and figure 11)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from rich.console import Console

from brisk_bench.disb.comparison.checks import ROUND, TRIAL, add_checks, best_trial
from brisk_bench.disb.comparison.sampling import (
    Round,
    WorkloadSample,
    describe,
    joined,
    run_columns,
    sample,
    summarise_side,
)
from brisk_bench.disb.networks import NETWORKS
from brisk_bench.disb.plan import CONFINED, RT_ONLY, Plan
from brisk_bench.disb.served import REALTIME, closed_loop
from brisk_bench.disb.sides import SUFFIXES, Side, entry_name, running_sides
from brisk_bench.disb.workloads import fit, laps, realtime_only
from brisk_bench.harness.report import REASON, Report
from brisk_bench.harness.surroundings import wait_until_settled
from brisk_client.workload.description import Workload
from brisk_client.workload.requests import UNLIMITED, request_sender

WARM_UPS = 12
"""Requests before a side's first run: a worker tries thread counts in its first eight runs."""

REHEARSAL_S = 10.0
"""The longest rehearsal of each side before the first round."""

LAP_S = 5.0
"""The length of a lap, a part of a run: what slows a shared machine for half a minute shall meet
all sides."""

LEAST_REQUESTS = 1100
"""The least requests of the real-time clients in each run: only a p99 shows whether the machine
was quiet. Some more than a p99 takes, since arrivals are random or a trace's."""

_CALIBRATION = 40
"""Runs of each network by which a round's arrivals are fitted, after WARM_UPS."""

LEAST_ROUNDS = 2
"""The fewest rounds on a quiet machine from which a workload's figures are reported."""


def compare(report: Report, workloads: Mapping[str, Workload], plan: Plan) -> None:
    """Add a row for each workload and side, and the checks that these allow.

    Raises WorkloadFailedError, ServerFailedError.
    """
    entries = sorted(
        {(t.model, t.job_class or REALTIME) for w in workloads.values() for t in w.tasks}
    )
    with running_sides(plan, entries) as running:
        for side in running:
            _settle(side, entries)
        for name, workload in workloads.items():
            _measure(report, running, workload, name, plan)
    add_checks(report)


def _measure(
    report: Report, running: Sequence[Side], workload: Workload, name: str, plan: Plan
) -> None:
    """Measure rounds of all sides, in laps, after an uncounted rehearsal.

    Arrivals are fitted before each round, the same for all its sides: a machine that others use
    may be half as fast a minute later, and the paper's share is of its capacity. In the rehearsal
    policies find out by how much best-effort work slows each network down, which REEF measures
    ahead of all (5.2). Each run is printed on standard error, so that a benchmark cut short has
    shown something.
    """
    networks = sorted({task.model for task in realtime_only(workload).tasks})
    alone = next(each for each in running if each.name == RT_ONLY)

    def tell(stage: str, side_name: str, found: WorkloadSample) -> WorkloadSample:
        console = Console(stderr=True, highlight=False)
        console.print(f"{name}, {stage}, {side_name}: {describe(found)}", soft_wrap=True)
        return found

    first_s = _calibrate(alone, networks)
    rehearsed, _ = fit(workload, first_s, min(plan.seconds, REHEARSAL_S))
    others = [side for side in running if not (side.is_baseline or side is alone)]
    for side in (alone, *others):
        tell("rehearsal", side.name, sample(side, rehearsed, WARM_UPS))
    baselines = {side.name: side for side in running if side.is_baseline}
    tried, _ = fit(workload, first_s, plan.trial_s)
    trials = {
        name: run_columns(tell(TRIAL, name, sample(side, tried, WARM_UPS)))
        for name, side in baselines.items()
    }
    others += [baselines[side] for side in taking_part(trials)]
    rounds: list[Round] = []
    alone_s: list[Mapping[str, float]] = []
    while wants_another(rounds, plan):
        number = len(rounds) + 1
        alone_s.append(_calibrate(alone, networks))
        fitted, factor = fit(workload, alone_s[-1], plan.seconds, LEAST_REQUESTS)
        before, runs, after = _laps(others, alone, laps(fitted, LAP_S))
        rounds.append(Round(number, round(factor, 3), fitted.duration_s, before, after, runs))
        for run_name, run in rounds[-1].runs.items():
            tell(f"round {number}", run_name, run)
    report.notes.append(_told(name, [each.arrivals for each in rounds], alone_s))
    report.rows += workload_rows(name, rounds)
    for side_name, columns in trials.items():
        report.rows.append({"workload": name, "side": side_name, "stage": TRIAL, **columns})
    report.notes += [
        f"{name}: no figure comes of round {each.number}, the machine is not known to have been "
        f"quiet: alone before and after differ: {each.disturbance}"
        for each in rounds
        if each.disturbance
    ]


def _laps(
    others: Sequence[Side], alone: Side, parts: Sequence[Workload]
) -> tuple[WorkloadSample, dict[str, WorkloadSample], WorkloadSample]:
    """Run all sides with each part of a workload, forwards and backwards alternately.

    Before and after each part run the real-time clients alone. Returns these runs before, each
    side's parts as one run by side name, and the runs after.
    """
    before, after = [], []
    runs: dict[str, list[WorkloadSample]] = {side.name: [] for side in others}
    for number, part in enumerate(parts):
        before.append(sample(alone, part, 1))
        for side in others[:: -1 if number % 2 else 1]:
            runs[side.name].append(sample(side, part, 1))
        after.append(sample(alone, part, 1))
    return joined(before), {name: joined(samples) for name, samples in runs.items()}, joined(after)


def taking_part(trials: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the best of Triton's sides in the trials, and the best that is confined."""
    sides = []
    for ending in ("", CONFINED):
        fitting = {side: row for side, row in trials.items() if side.endswith(ending)}
        if fitting:
            sides.append(best_trial(fitting))
    return list(dict.fromkeys(sides))


def wants_another(rounds: Sequence[Round], plan: Plan) -> bool:
    """Whether neither enough rounds were quiet nor the plan's most rounds are done."""
    return len(quiet_of(rounds)) < plan.rounds and len(rounds) < plan.most_rounds


def quiet_of(rounds: Sequence[Round]) -> list[Round]:
    """Return the rounds in which the machine is known to have been quiet."""
    return [each for each in rounds if not each.disturbance]


def workload_rows(name: str, rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Return a row for each side over all quiet rounds, or one that says why there are none; then
    one for each run of each round."""
    quiet = quiet_of(rounds)
    rows: list[dict[str, Any]] = []
    if len(quiet) < LEAST_ROUNDS:
        counts = f"{len(quiet)} of {len(rounds)} rounds"
        reason = f"no figure, machine not known to be quiet: {counts}"
        rows.append({"workload": name, REASON: reason})
    else:
        for side in (RT_ONLY, *rounds[0].sides):
            rows.append({"workload": name, "side": side, **summarise_side(quiet, side)})
    for each in rounds:
        columns = {"stage": ROUND, "round": each.number, "quiet": not each.disturbance}
        columns["seconds"] = round(each.seconds, 1)
        for side, run in each.runs.items():
            rows.append({"workload": name, "side": side, **columns, **run_columns(run)})
    return rows


def _told(name: str, factors: Sequence[float], alone_s: Sequence[Mapping[str, float]]) -> str:
    """Describe the arrivals and the calibration of the rounds in a note.

    ``factors``: how many times as far apart as in the paper each round's arrivals were.
    ``alone_s``: each round's calibration.
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
    """Wait until Brisk exchanges no more kernels; a baseline has none to exchange."""
    if side.is_baseline:
        return
    with grpc.insecure_channel(side.server.grpc, options=UNLIMITED) as channel:
        for network, job_class in wanted:
            entry = entry_name(network, job_class)
            request_sender(channel, closed_loop(entry, job_class))()
            alias = next(entry_name(network, each) for each in SUFFIXES if each != job_class)
            wait_until_settled(side.server.place, entry, job_class, alias)


def _calibrate(side: Side, networks: Sequence[str]) -> dict[str, float]:
    """Measure the latency of each of ``networks`` without best-effort work, request by request.

    They take turns, as in the workload: on a CPU each drives the others' weights out of the
    caches. Medians: half of the runs of a workload are slower, as half of these are.
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
    return {name: statistics.median(own_s[WARM_UPS:]) for name, own_s in times_s.items()}
