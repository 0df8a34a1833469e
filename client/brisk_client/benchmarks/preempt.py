"""`brisk bench preempt`: REEF's evaluation (sections 7.2 to 7.4) on this machine.

Parts: `workloads` (DISB A to E and REAL through real servers, figure 11), `preemption` (latency
until a real-time request runs, figures 12 and 15), `layers` (the same for ever longer best-effort
layers, figure 13), `pairs` (one network against another, figure 16), `loops` (networks of one
class asked without pause, one run at a time and two side by side), `equality` (answers with and
without preemption, bit by bit).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from brisk_client.benchmarks.command_line import benchmark_parser, deliver
from brisk_client.benchmarks.machine import describe_machine, installed_versions
from brisk_client.disb import equality, loops, pairs, preemption
from brisk_client.disb.comparison import compare
from brisk_client.disb.figures import plot_figures
from brisk_client.disb.networks import NETWORKS
from brisk_client.disb.sides import DEFAULT_POLICY, POLICIES, RT_ONLY, TRITON
from brisk_client.disb.workloads import REAL, WORKLOADS, read_real
from brisk_client.report import Report

PARTS = ("workloads", "preemption", "layers", "pairs", "loops", "equality")

QUICK_WORKLOADS = ("C", "D")
QUICK_SIDES = (RT_ONLY, "shared", DEFAULT_POLICY, TRITON)
"""What a quick run compares unless told otherwise: it takes three to four minutes."""

PROBED = (DEFAULT_POLICY, preemption.WAITING)
PAIRED = (DEFAULT_POLICY, "shared")

INTERRUPTIONS = 200
"""Of best-effort work by a real-time request, for each row of figures 12 and 13."""

NOTES = (
    "latency counts from when a request was due; ratios are medians over rounds of a side's value "
    "over RT-only's in the same round; times are of all rounds together",
    "an entry for each network and class; deadline: real-time requests are due when the next one "
    "is, and those that cannot be are refused (failed)",
    "triton: Python backend with ONNX Runtime, two instances an entry, rate limiter with one "
    "execution a core, real-time entries of priority 1 and best-effort ones of 100",
)


def run(
    quick: bool = False,
    parts: Sequence[str] = PARTS,
    workloads: Sequence[str] | None = None,
    sides: Sequence[str] | None = None,
    real: Path | None = None,
    rounds: int = 3,
    seconds: float = 6.0,
    interruptions: int = INTERRUPTIONS,
) -> Report:
    """Measure the parts wanted.

    ``workloads``, ``sides``: None is all, or some of them where it shall be quick. ``real``:
    DISB's REAL.json; without it REAL is left out.
    """
    if workloads is None:
        workloads = QUICK_WORKLOADS if quick else (*WORKLOADS, REAL)
    if sides is None:
        sides = QUICK_SIDES if quick else (RT_ONLY, *POLICIES, TRITON)
    threads = len(os.sched_getaffinity(0))
    report = Report(
        name="preempt",
        machine={**describe_machine(), "threads": threads},
        versions=installed_versions("torch", "onnxruntime", "tritonclient", "numpy"),
        rows=[],
        checks=[],
        notes=list(NOTES),
    )
    if quick:
        rounds, seconds = 1, 2.0
        report.notes.append(f"quick: one round of {', '.join(workloads)}: no figures that count")
    if "workloads" in parts:
        wanted = {name: WORKLOADS[name] for name in workloads if name in WORKLOADS}
        if REAL in workloads and real is not None:
            wanted[REAL] = read_real(real)
        elif REAL in workloads:
            report.notes.append("REAL is left out: no trace file was given (--real FILE)")
        if wanted:
            compare(report, wanted, sides, rounds=rounds, seconds=seconds, threads=threads)
    policies = [name for name in PROBED if name in sides]
    count = 20 if quick else interruptions
    if "preemption" in parts:
        preemption.measure_networks(report, policies, count, threads)
    if "layers" in parts:
        preemption.measure_layers(report, policies, count, threads)
    if {"preemption", "layers"} & set(parts):
        report.notes += preemption.NOTES
        preemption.add_checks(report)
    if "pairs" in parts:
        networks = ("vgg", "bert") if quick else tuple(NETWORKS)
        policies = [name for name in PAIRED if name in sides]
        pairs.measure_pairs(report, policies, networks, 0.5 if quick else 1.0, threads)
    if "loops" in parts:
        networks = ("densenet", "resnet") if quick else tuple(NETWORKS)
        loops.measure_loops(report, networks, rounds, seconds, threads)
    if "equality" in parts:
        equality.check_points(report, 1000 if quick else 10_000, threads)
        equality.check_served(report, 5 if quick else 20, threads)
    return report


def main(arguments: Sequence[str]) -> int:
    """The command line; the exit status is 0 where every check holds."""
    parser = benchmark_parser("preempt", __doc__, "one short round")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this; any number")
    names = (*WORKLOADS, REAL)
    parser.add_argument("--workload", action="append", choices=names, help="any number")
    sides = (*POLICIES, TRITON)
    parser.add_argument(
        "--side", action="append", choices=sides, help="beside RT-only; any number"
    )
    parser.add_argument("--real", type=Path, metavar="FILE", help="DISB's REAL.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each run")
    parser.add_argument("--interruptions", type=int, default=INTERRUPTIONS, help="of each row")
    chosen = parser.parse_args(arguments)
    report = run(
        chosen.quick,
        chosen.part or PARTS,
        chosen.workload,
        (RT_ONLY, *chosen.side) if chosen.side else None,
        chosen.real,
        chosen.rounds,
        chosen.seconds,
        chosen.interruptions,
    )
    return deliver(report, chosen, lambda folder: plot_figures(report, folder))
