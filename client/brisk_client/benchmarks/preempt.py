"""`brisk bench preempt`: REEF's evaluation (sections 7.2 to 7.4) on this machine.

Parts: `workloads` (DISB A to E and REAL through real servers, figure 11), `preemption` (latency
until a real-time request runs, figures 12 and 15), `layers` (the same for ever longer best-effort
layers, figure 13), `pairs` (one network against another, figure 16), `equality` (answers
with and without preemption, bit by bit).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from brisk_client.benchmarks.harness.command_line import benchmark_parser, deliver
from brisk_client.benchmarks.harness.machine import new_report
from brisk_client.benchmarks.harness.peer_backends import PEER_LIBRARY
from brisk_client.disb import equality, pairs, preemption
from brisk_client.disb.comparison import REHEARSAL_S, Extent, compare
from brisk_client.disb.networks import NETWORKS
from brisk_client.disb.preemption import LAYERS_MS, OTHERS_SHARE
from brisk_client.disb.sides import (
    DEFAULT_POLICY,
    POLICIES,
    QUICK_SETTINGS,
    RT_ONLY,
    TRITON,
    TritonSetting,
    choose_settings,
)
from brisk_client.disb.workloads import REAL, WORKLOADS, read_real
from brisk_client.report import Report, plot_bars

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
class Plan:
    """What is measured.

    ``settings``: none where Triton is not among ``sides``. ``real``: DISB's REAL.json; without it
    REAL is left out. ``peers``: folder of Triton's C++ backend.
    """

    quick: bool
    parts: Sequence[str]
    workloads: Sequence[str]
    sides: Sequence[str]
    settings: Sequence[TritonSetting]
    networks: Sequence[str]
    extent: Extent
    interruptions: int
    points: int
    served_requests: int
    peers: Path | None
    real: Path | None

    @property
    def probed(self) -> list[str]:
        return [name for name in PROBED if name in self.sides]


def plan_of(
    *,
    quick: bool = False,
    parts: Sequence[str] | None = None,
    workloads: Sequence[str] | None = None,
    sides: Sequence[str] | None = None,
    settings: Sequence[str] | None = None,
    networks: Sequence[str] | None = None,
    peers: Path | None = None,
    real: Path | None = None,
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    baseline_s: float | None = None,
    interruptions: int = INTERRUPTIONS,
    points: int = POINTS,
) -> Plan:
    """None is all, or some where it shall be ``quick``; ``sides`` are beside RT-only.

    ``baseline_s``: of each of Triton's settings, None: as long as all others. Raises
    InvalidConfigurationError where settings or peers are not there.
    """
    compared = (RT_ONLY, *sides) if sides else None
    compared = compared or (QUICK_SIDES if quick else (RT_ONLY, *POLICIES, TRITON))
    chosen = choose_settings(settings or (QUICK_SETTINGS if quick else None), peers)
    seconds = min(seconds, 2.0) if quick else seconds
    baseline_s = seconds if baseline_s is None else min(seconds, baseline_s)
    return Plan(
        quick=quick,
        parts=parts or PARTS,
        workloads=workloads or (QUICK_WORKLOADS if quick else (*WORKLOADS, REAL)),
        sides=compared,
        settings=chosen if TRITON in compared else (),
        networks=networks or (("vgg", "bert") if quick else tuple(NETWORKS)),
        extent=Extent(1 if quick else rounds, seconds, baseline_s),
        interruptions=min(interruptions, 20) if quick else interruptions,
        points=min(points, 200) if quick else points,
        served_requests=5 if quick else SERVED_REQUESTS,
        peers=peers,
        real=real,
    )


def run(plan: Plan) -> Report:
    """Raises InvalidConfigurationError, WorkloadFailedError, ServerFailedError."""
    threads = len(os.sched_getaffinity(0))
    packages = ("torch", "onnxruntime", "tritonclient", "numpy")
    report = new_report("preempt", packages, NOTES, threads=threads)
    extent = plan.extent
    if plan.quick:
        report.notes.insert(0, QUICK.format(extent.rounds, extent.seconds))
    if extent.screens and plan.settings and "workloads" in plan.parts:
        report.notes.append(SCREENED.format(extent.baseline_s))
    _announce(report, plan)
    sides = preemption.Sides(plan.probed, plan.settings, plan.interruptions, threads, plan.peers)
    if "workloads" in plan.parts:
        wanted = {name: WORKLOADS[name] for name in plan.workloads if name in WORKLOADS}
        if REAL in plan.workloads and plan.real is not None:
            wanted[REAL] = read_real(plan.real)
        elif REAL in plan.workloads:
            report.notes.append("REAL is left out: no trace file was given (--real FILE)")
        if wanted:
            compare(report, wanted, plan.sides, extent, threads, plan.settings, plan.peers)
    if "preemption" in plan.parts:
        preemption.measure_networks(report, sides, plan.networks)
    if "layers" in plan.parts:
        preemption.measure_layers(report, sides, LAYERS_MS[::3] if plan.quick else LAYERS_MS)
    if {"preemption", "layers"} & set(plan.parts):
        report.notes += preemption.NOTES
        preemption.add_checks(report)
    if "pairs" in plan.parts:
        policies = [name for name in PAIRED if name in plan.sides]
        each_s = 0.5 if plan.quick else 1.0
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
    minutes = told_minutes(estimate_s(plan))
    console.print(f"preempt: takes about {minutes}", soft_wrap=True)


# How long that takes on a quiet machine of two cores.

BRISK_START_S, TRITON_START_S = 15.0, 25.0
"""Of a server with all entries, until its kernels stay."""

CALIBRATION_S = 6.0
"""Before each round."""

RUN_START_S = 3.0
"""Of a workload's run: warm-up, generators, the last answers."""

INTERRUPTION_S, WAITING_S = 0.035, 0.1
"""Of a real-time request with the pause before it: interrupting, and waiting."""

POINT_S = 0.015
PAIR_S = 2.2


def estimate_s(plan: Plan) -> dict[str, float]:
    """By part."""
    settings, networks = len(plan.settings), len(plan.networks)
    served = networks * plan.served_requests
    found = {
        "workloads": _workloads_s(plan),
        "pairs": 2 * (BRISK_START_S + networks**2 * PAIR_S),
        "equality": 2 * BRISK_START_S + plan.points * POINT_S + served * 0.5,
    }
    starts_s = len(plan.probed) * 2 * BRISK_START_S + settings * TRITON_START_S
    others_s = (max(0, len(plan.probed) - 1) + settings) * WAITING_S / OTHERS_SHARE
    each_s = plan.interruptions * (INTERRUPTION_S + others_s)
    for part, count in {"preemption": networks, "layers": len(LAYERS_MS)}.items():
        found[part] = starts_s + (count + 1) * each_s
    return {part: found[part] for part in plan.parts}


def _workloads_s(plan: Plan) -> float:
    extent, settings = plan.extent, len(plan.settings)
    sides = len([side for side in plan.sides if side != TRITON])
    starts_s = max(0, sides - 1) * BRISK_START_S + settings * TRITON_START_S
    in_rounds = sides + (min(1, settings) if extent.screens else settings)
    rehearsed = sides if extent.screens else sides + settings
    screened = settings if extent.screens else 0
    each_s = (
        (extent.rounds + 1) * CALIBRATION_S
        + rehearsed * (min(extent.seconds, REHEARSAL_S) + RUN_START_S)
        + screened * (extent.baseline_s + RUN_START_S)
        + extent.rounds * in_rounds * (extent.seconds + RUN_START_S)
    )
    return starts_s + len(plan.workloads) * each_s


def told_minutes(parts: Mapping[str, float]) -> str:
    """In whole minutes, at least one, with each part's."""
    each = ", ".join(f"{part} {max(1, round(s / 60))}" for part, s in parts.items())
    return f"{max(1, round(sum(parts.values()) / 60))} minutes in all ({each})"


PLOTTED = {
    "12": ("p50_us", "best_effort", "policy"),
    "13": ("p50_us", "layer_ms", "policy"),
    "15": ("restore_ms", "best_effort", "policy"),
    "16": ("slowdown", "policy", "pair"),
}
"""By figure of the paper: columns of the bars, of the files, of what tells bars apart."""


def plot_figures(report: Report, folder: Path) -> list[Path]:
    """Bars of the figures 11, 12, 13, 15 and 16 whose rows are there."""
    files = plot_bars(report, folder, "p99_ms", "workload", "side")
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


def main(arguments: Sequence[str]) -> int:
    """The command line; the exit status is 0 where every check holds."""
    parser = benchmark_parser("preempt", __doc__, "one short round, no figure of which counts")

    def several(option: str, dest: str, text: str, **settings: Any) -> None:
        parser.add_argument(option, dest=dest, action="append", help=text, **settings)

    add = parser.add_argument
    several("--part", "parts", "only this; any number", choices=PARTS)
    several("--workload", "workloads", "any number", choices=(*WORKLOADS, REAL))
    several("--side", "sides", "beside RT-only; any number", choices=(*POLICIES, TRITON))
    several("--triton-setting", "settings", "only this; any number", metavar="NAME")
    several("--network", "networks", "of the parts without workloads", choices=tuple(NETWORKS))
    add(
        "--triton-seconds",
        dest="baseline_s",
        type=float,
        metavar="S",
        help="of each of Triton's settings; less than --seconds: only the best one has rounds",
    )
    add(
        "--peer-backends",
        dest="peers",
        type=Path,
        metavar="DIR",
        help=f"a folder with {PEER_LIBRARY}: Triton's C++ backend is measured, too",
    )
    add("--real", type=Path, metavar="FILE", help="DISB's REAL.json")
    add("--rounds", type=int, default=ROUNDS)
    add("--seconds", type=float, default=SECONDS, help="of each run (default: %(default)g)")
    add("--interruptions", type=int, default=INTERRUPTIONS, help="of each row")
    add("--points", type=int, default=POINTS, help="interruptions of the part equality")
    chosen = parser.parse_args(arguments)
    of_delivery = ("json", "plot", "provenance")
    options = {name: value for name, value in vars(chosen).items() if name not in of_delivery}
    report = run(plan_of(**options))
    return deliver(report, chosen, lambda folder: plot_figures(report, folder))
