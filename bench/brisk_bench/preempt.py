"""`brisk bench preempt`: REEF's evaluation (sections 7.2 to 7.4) on this machine.

Parts: `workloads` (DISB A to E and REAL through real servers, figure 11), `preemption` (latency
until a real-time request runs, figures 12 and 15), `layers` (the same for ever longer best-effort
segments, figure 13), `pairs` (one network against another, figure 16), `equality` (answers
with and without preemption, bit by bit).
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from brisk_bench.disb import equality, pairs, preemption
from brisk_bench.disb.comparison.rounds import LAP_S, LEAST_ROUNDS, compare
from brisk_bench.disb.comparison.sampling import MEAN_DIFFERENCE, P99_DIFFERENCE
from brisk_bench.disb.networks import NETWORKS
from brisk_bench.disb.plan import (
    INTERRUPTIONS,
    MOST_TIMES,
    PARTS,
    POINTS,
    POLICIES,
    ROUNDS,
    SECONDS,
    TRIAL_S,
    TRITON,
    Plan,
    plan_of,
)
from brisk_bench.disb.workloads import REAL, WORKLOADS, read_real
from brisk_bench.harness.command_line import benchmark_parser, deliver
from brisk_bench.harness.machine import new_report
from brisk_bench.harness.peer_backends import PEER_LIBRARY
from brisk_bench.harness.report import Report, plot_bars
from brisk_client.workload.requests import ANSWER_TIMEOUT_S

NOTES = ("no p99 is told of fewer than 1,000 requests, no p99.9 of fewer than 10,000",)
WORKLOAD_NOTES = (
    f"the runs of a round go on in laps of some {LAP_S:g} s; each begins and ends with the "
    "real-time clients alone (RT-only before, after), the other sides between them forwards and "
    "backwards in turns; where those before and those after differ by more than "
    f"{MEAN_DIFFERENCE:.0%} in mean or {P99_DIFFERENCE:.0%} in p99 the machine was not quiet, and "
    "the round's rows (stage round) are kept but no figure comes of them; of fewer than "
    f"{LEAST_ROUNDS} quiet rounds no figure comes at all, and the workload's checks say so",
    "latency counts from when a request was due and is of all real-time requests: of one that was "
    "dropped (the next one was due before its client could send it) until the answer to the newer "
    f"one that took its place, of one that failed at least {ANSWER_TIMEOUT_S:g} s, which is how "
    "long a client waits",
    "percentiles, and ratios of p99s, are of the requests of all quiet rounds together; ratios of "
    "means and of throughput are medians over these rounds of a side's value over RT-only's in "
    "the same round, mean_ratio_range the least and greatest; RT-only is both runs alone",
    "an entry for each network and class; deadline: real-time requests are due when the next one "
    "is, and those that cannot be are refused (failed)",
)
TRITON_NOTE = (
    "triton: Triton's own backends with ONNX Runtime, a side for each setting: 'one run' (one "
    "execution at a time by the rate limiter, all cores), 'besteffort confined' (real-time ones "
    "whenever they come, one best-effort one of one thread), 'two runs' and 'thread a run' (two "
    "at once, of all cores' threads or of one), 'free' (no limiter); real-time entries have "
    "priority 1, best-effort ones 100; every setting ran {:g} s of each workload before the "
    "rounds (stage trial), and the one of least real-time p90 took part in them, the confined one "
    "in any case; the best is the one of these with the least p99 in the rounds"
)
RUN = (
    "of each run of a round (default: %(default)g); up to twice as long where the real-time "
    "requests would be too few for a p99"
)
QUICK = (
    "QUICK: {} round of {:g} s and few requests, to see that it works: NO FIGURE HERE COUNTS, and "
    "checks of tails fail for want of answers"
)


def notes_of(plan: Plan) -> list[str]:
    """Return the notes that precede all measuring; on Triton's settings only if any take part."""
    notes = [*NOTES]
    if "workloads" in plan.parts:
        notes += WORKLOAD_NOTES
        if plan.settings:
            notes.append(TRITON_NOTE.format(plan.trial_s))
    return notes


def run(plan: Plan) -> Report:
    """Run the plan. Raises InvalidConfigurationError, WorkloadFailedError, ServerFailedError."""
    packages = ("torch", "onnxruntime", "tritonclient", "numpy")
    report = new_report("preempt", packages, notes_of(plan), threads=plan.threads)
    if plan.quick:
        report.notes.insert(0, QUICK.format(plan.rounds, plan.seconds))
        console = Console(stderr=True, highlight=False)
        console.print(f"[bold red]{report.notes[0]}[/bold red]")
    if "workloads" in plan.parts:
        workloads = {name: WORKLOADS[name] for name in plan.workloads if name in WORKLOADS}
        if REAL in plan.workloads and plan.real is not None:
            workloads[REAL] = read_real(plan.real)
        elif REAL in plan.workloads:
            report.notes.append("REAL is left out: no trace file was given (--real FILE)")
        if workloads:
            compare(report, workloads, plan)
    if "preemption" in plan.parts:
        preemption.measure_networks(report, plan)
    if "layers" in plan.parts:
        preemption.measure_layers(report, plan)
    if {"preemption", "layers"} & set(plan.parts):
        report.notes += preemption.NOTES
        preemption.add_checks(report)
    if "pairs" in plan.parts:
        pairs.measure_pairs(report, plan)
    if "equality" in plan.parts:
        equality.check_points(report, plan.points, plan.threads)
        equality.check_served(report, plan)
    return report


PLOTTED = {
    "12": ("p50_us", "best_effort", "policy"),
    "13": ("p50_us", "layer_ms", "policy"),
    "15": ("restore_ms", "best_effort", "policy"),
    "16": ("slowdown", "policy", "pair"),
}
"""By figure of the paper: the columns of the bars' heights, the files and the bars' names."""


def plot_figures(report: Report, folder: Path) -> list[Path]:
    """Plot bars of the figures 11, 12, 13, 15 and 16 that have rows."""
    summaries = [row for row in report.rows if "stage" not in row]
    drawn = dataclasses.replace(report, rows=summaries)
    files = plot_bars(drawn, folder, "p99_ms", "workload", "side")
    for figure, columns in PLOTTED.items():
        rows = [
            {**row, "pair": f"{row.get('realtime')} beside {row['best_effort']}"}
            for row in report.rows
            if row.get("figure") == figure
            and row.get("part", preemption.EXECUTE) == preemption.EXECUTE
        ]
        drawn = dataclasses.replace(report, name=f"preempt-{figure}", rows=rows)
        files += plot_bars(drawn, folder, *columns)
    return files


def make_parser() -> argparse.ArgumentParser:
    parser = benchmark_parser("preempt", __doc__, "one short round, no figure of which counts")
    add = parser.add_argument
    for option, dest, choices, text in (
        ("--part", "parts", PARTS, "only this; any number"),
        ("--workload", "workloads", (*WORKLOADS, REAL), "any number"),
        ("--side", "sides", (*POLICIES, TRITON), "beside RT-only; any number"),
        ("--network", "networks", tuple(NETWORKS), "of the parts without workloads"),
        ("--triton-setting", "settings", None, "only this; any number"),
    ):
        name = None if choices else "NAME"
        add(option, dest=dest, action="append", choices=choices, metavar=name, help=text)
    add(
        "--trial-seconds",
        dest="trial_s",
        type=float,
        default=TRIAL_S,
        metavar="S",
        help="of each of Triton's settings, of which the best one and the confined one have "
        "rounds (default: %(default)g)",
    )
    add(
        "--peer-backends",
        dest="peers",
        type=Path,
        metavar="DIR",
        help=f"a folder with {PEER_LIBRARY}: Triton's C++ backend is measured, too",
    )
    add("--real", type=Path, metavar="FILE", help="DISB's REAL.json")
    rounds_help = f"that are quiet; of {MOST_TIMES} times as many at most"
    add("--rounds", type=int, default=ROUNDS, help=rounds_help)
    add("--seconds", type=float, default=SECONDS, help=RUN)
    add("--interruptions", type=int, default=INTERRUPTIONS, help="of each row")
    add("--points", type=int, default=POINTS, help="interruptions of the part equality")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command line; the exit status is 0 if every check holds."""
    chosen = make_parser().parse_args(arguments)
    report = run(plan_of(chosen))
    return deliver(report, chosen, lambda folder: plot_figures(report, folder))
