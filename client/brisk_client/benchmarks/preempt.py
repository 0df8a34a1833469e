"""`brisk bench preempt`: REEF's evaluation (sections 7.2 to 7.4) on this machine.

Parts: `workloads` (DISB A to E and REAL through real servers, figure 11), `preemption` (latency
until a real-time request runs, figures 12 and 15), `layers` (the same for ever longer best-effort
layers, figure 13), `pairs` (one network against another, figure 16), `equality` (answers
with and without preemption, bit by bit).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from brisk_client.benchmarks.harness.command_line import benchmark_parser, deliver
from brisk_client.benchmarks.harness.machine import describe_machine, installed_versions
from brisk_client.benchmarks.harness.peer_backends import PEER_LIBRARY
from brisk_client.disb import equality, pairs, preemption
from brisk_client.disb.comparison import Extent, compare
from brisk_client.disb.duration import estimate_s, told_minutes
from brisk_client.disb.figures import plot_figures
from brisk_client.disb.setup.baselines import (
    QUICK_SETTINGS,
    TRITON,
    TritonSetting,
    choose_settings,
)
from brisk_client.disb.setup.networks import NETWORKS
from brisk_client.disb.setup.sides import DEFAULT_POLICY, POLICIES, RT_ONLY
from brisk_client.disb.setup.workloads import REAL, WORKLOADS, read_real
from brisk_client.report import Report

PARTS = ("workloads", "preemption", "layers", "pairs", "equality")

QUICK_WORKLOADS = ("C",)
QUICK_SIDES = (RT_ONLY, "shared", DEFAULT_POLICY, TRITON)
"""What a quick run compares unless told otherwise."""

PROBED = (DEFAULT_POLICY, preemption.WAITING)
PAIRED = (DEFAULT_POLICY, "shared")

SECONDS, ROUNDS = 60.0, 3
"""Of a run, as REEF's are, and runs of each side."""

INTERRUPTIONS = 1000
"""Of best-effort work by a real-time request, for each row of figures 12 and 13: a p99 takes so
many."""

POINTS, SERVED_REQUESTS = 10_000, 20
"""Interruptions of the part ``equality``, at the wire and of each network through Triton."""

NOTES = (
    "latency counts from when a request was due; percentiles, and ratios of p99s, are of the "
    "answers of all rounds together; ratios of means and of throughput are medians over rounds of "
    "a side's value over RT-only's in the same round, mean_ratio_range the least and greatest",
    "no p99 is told of fewer than 1,000 answers, no p99.9 of fewer than 10,000",
    "an entry for each network and class; deadline: real-time requests are due when the next one "
    "is, and those that cannot be are refused (failed)",
    "triton: Triton's own backends with ONNX Runtime, a side for each setting: 'one run' (one "
    "execution at a time by the rate limiter, all cores), 'besteffort confined' (real-time ones "
    "whenever they come, one best-effort one of one thread), 'two runs' and 'thread a run' (two "
    "at once, of all cores' threads or of one), 'free' (no limiter); real-time entries have "
    "priority 1, best-effort ones 100; the best of them by p99 in this run is what is compared",
)
SCREENED = (
    "triton: every setting ran {:g} s of each workload (stage screening); the one with the least "
    "real-time p90 took part in the rounds"
)
QUICK = (
    "QUICK: {} round of {:g} s and few requests, to see that it works: NO FIGURE HERE COUNTS, and "
    "checks of tails fail for want of answers"
)


@dataclass(frozen=True, slots=True)
class PreemptOptions:
    """What shall be measured.

    ``workloads``, ``sides``, ``settings``, ``networks``: None is all, or some where it shall be
    quick. ``real``: DISB's REAL.json; without it REAL is left out. ``baseline_s``: of each of
    Triton's settings, None: as long as all others. ``peers``: folder of Triton's C++ backend.
    """

    quick: bool = False
    parts: Sequence[str] = PARTS
    workloads: Sequence[str] | None = None
    sides: Sequence[str] | None = None
    settings: Sequence[str] | None = None
    networks: Sequence[str] | None = None
    peers: Path | None = None
    real: Path | None = None
    rounds: int = ROUNDS
    seconds: float = SECONDS
    baseline_s: float | None = None
    interruptions: int = INTERRUPTIONS
    points: int = POINTS


@dataclass(frozen=True, slots=True)
class Plan:
    """A choice with everything said. ``settings``: none where Triton is not among ``sides``."""

    parts: Sequence[str]
    workloads: Sequence[str]
    sides: Sequence[str]
    settings: Sequence[TritonSetting]
    networks: Sequence[str]
    extent: Extent
    interruptions: int
    points: int
    served_requests: int

    @property
    def probed(self) -> list[str]:
        return [name for name in PROBED if name in self.sides]


def plan_of(choice: PreemptOptions) -> Plan:
    """Raises InvalidConfigurationError where settings or peers are not there."""
    quick = choice.quick
    sides = choice.sides or (QUICK_SIDES if quick else (RT_ONLY, *POLICIES, TRITON))
    names = choice.settings or (QUICK_SETTINGS if quick else None)
    settings = choose_settings(names, choice.peers)
    seconds = min(choice.seconds, 2.0) if quick else choice.seconds
    baseline_s = seconds if choice.baseline_s is None else min(seconds, choice.baseline_s)
    return Plan(
        choice.parts,
        choice.workloads or (QUICK_WORKLOADS if quick else (*WORKLOADS, REAL)),
        sides,
        settings if TRITON in sides else (),
        choice.networks or (("vgg", "bert") if quick else tuple(NETWORKS)),
        Extent(1 if quick else choice.rounds, seconds, baseline_s),
        min(choice.interruptions, 20) if quick else choice.interruptions,
        min(choice.points, 200) if quick else choice.points,
        5 if quick else SERVED_REQUESTS,
    )


def run(choice: PreemptOptions) -> Report:
    """Measure the parts wanted. Raises InvalidConfigurationError, WorkloadFailedError,
    ServerFailedError.
    """
    plan = plan_of(choice)
    threads = len(os.sched_getaffinity(0))
    report = Report(
        name="preempt",
        machine={**describe_machine(), "threads": threads},
        versions=installed_versions("torch", "onnxruntime", "tritonclient", "numpy"),
        rows=[],
        checks=[],
        notes=list(NOTES),
    )
    extent = plan.extent
    if choice.quick:
        report.notes.insert(0, QUICK.format(extent.rounds, extent.seconds))
    if extent.screens and plan.settings and "workloads" in plan.parts:
        report.notes.append(SCREENED.format(extent.baseline_s))
    _announce(report, plan)
    sides = preemption.Sides(plan.probed, plan.settings, plan.interruptions, threads, choice.peers)
    if "workloads" in plan.parts:
        wanted = {name: WORKLOADS[name] for name in plan.workloads if name in WORKLOADS}
        if REAL in plan.workloads and choice.real is not None:
            wanted[REAL] = read_real(choice.real)
        elif REAL in plan.workloads:
            report.notes.append("REAL is left out: no trace file was given (--real FILE)")
        if wanted:
            compare(report, wanted, plan.sides, extent, threads, plan.settings, choice.peers)
    if "preemption" in plan.parts:
        preemption.measure_networks(report, sides, plan.networks)
    if "layers" in plan.parts:
        lengths = preemption.LAYERS_MS
        preemption.measure_layers(report, sides, lengths[::3] if choice.quick else lengths)
    if {"preemption", "layers"} & set(plan.parts):
        report.notes += preemption.NOTES
        preemption.add_checks(report)
    if "pairs" in plan.parts:
        policies = [name for name in PAIRED if name in plan.sides]
        each_s = 0.5 if choice.quick else 1.0
        pairs.measure_pairs(report, policies, plan.networks, each_s, threads)
    if "equality" in plan.parts:
        equality.check_points(report, plan.points, threads)
        equality.check_served(report, plan.networks, plan.served_requests, threads)
    return report


def _announce(report: Report, plan: Plan) -> None:
    """What is about to be measured, and for how long, on standard error."""
    console = Console(stderr=True, highlight=False)
    for note in report.notes:
        if note.startswith("QUICK"):
            console.print(f"[bold red]{note}[/bold red]")
    minutes = told_minutes(
        estimate_s(
            plan.parts,
            workloads=len(plan.workloads),
            sides=len([side for side in plan.sides if side != TRITON]),
            settings=len(plan.settings),
            policies=len(plan.probed),
            networks=len(plan.networks),
            extent=plan.extent,
            interruptions=plan.interruptions,
            points=plan.points,
            served_requests=plan.served_requests,
        )
    )
    console.print(f"preempt: takes about {minutes}", soft_wrap=True)


def main(arguments: Sequence[str]) -> int:
    """The command line; the exit status is 0 where every check holds."""
    parser = benchmark_parser("preempt", __doc__, "one short round, no figure of which counts")
    add = parser.add_argument
    add("--part", action="append", choices=PARTS, help="only this; any number")
    add("--workload", action="append", choices=(*WORKLOADS, REAL), help="any number")
    sides = (*POLICIES, TRITON)
    add("--side", action="append", choices=sides, help="beside RT-only; any number")
    add("--triton-setting", action="append", metavar="NAME", help="only this; any number")
    add(
        "--triton-seconds",
        type=float,
        metavar="S",
        help="of each of Triton's settings; less than --seconds: only the best one has rounds",
    )
    add(
        "--peer-backends",
        type=Path,
        metavar="DIR",
        help=f"a folder with {PEER_LIBRARY}: Triton's C++ backend is measured, too",
    )
    add(
        "--network",
        action="append",
        choices=tuple(NETWORKS),
        help="of the parts without workloads",
    )
    add("--real", type=Path, metavar="FILE", help="DISB's REAL.json")
    add("--rounds", type=int, default=ROUNDS)
    add("--seconds", type=float, default=SECONDS, help="of each run (default: %(default)g)")
    add("--interruptions", type=int, default=INTERRUPTIONS, help="of each row")
    add("--points", type=int, default=POINTS, help="interruptions of the part equality")
    chosen = parser.parse_args(arguments)
    report = run(
        PreemptOptions(
            chosen.quick,
            chosen.part or PARTS,
            chosen.workload,
            (RT_ONLY, *chosen.side) if chosen.side else None,
            chosen.triton_setting,
            chosen.network,
            chosen.peer_backends,
            chosen.real,
            chosen.rounds,
            chosen.seconds,
            chosen.triton_seconds,
            chosen.interruptions,
            chosen.points,
        )
    )
    return deliver(report, chosen, lambda folder: plot_figures(report, folder))
