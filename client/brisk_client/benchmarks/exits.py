"""`brisk bench exits`: a model with its learned caches against the same model without, in process.

Trains caches on one part of the data and measures on another that training never saw: latency,
agreement with the bare model and the share of early answers, at batch 1, 2 and 8, sides in turns;
with look-ups the other way round, and with thresholds on the softmax instead of selectors. Then
whether the promise is kept in repeated calibrations and an audit notices a degradation, and what
learning from Zipf streams gains. The ways of composing and of exploring are compared by the
latency that each expects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from brisk.execution import load_program
from brisk.exits.audit import STATED_AUDITS
from brisk.exits.cascade import Cascade
from brisk.exits.exploration import Exploration, ExplorationSettings, explore
from brisk.exits.exploration.settings import LookUps
from brisk.graph import read_program
from brisk_client.benchmarks.command_line import benchmark_parser, deliver
from brisk_client.benchmarks.exit_data import (
    FASHION,
    Case,
    cifar_case,
    digits_case,
    fashion_case,
)
from brisk_client.benchmarks.exit_expectations import expected_rows
from brisk_client.benchmarks.exit_plots import plot_sides
from brisk_client.benchmarks.exit_promise import (
    CALIBRATIONS,
    Unseen,
    audits_until_off,
    repeated_calibrations,
    softmax_cascade,
)
from brisk_client.benchmarks.exit_runs import BARE, Bench, Side, Version
from brisk_client.benchmarks.exit_streams import ALPHAS, mean_speed_up, run_streams
from brisk_client.benchmarks.machine import describe_machine, installed_versions
from brisk_client.report import Check, Report

ACCURACY = 0.97
SPEED_UPS = {0.97: 1.95, 0.99: 1.41}
"""GATI's for ResNet-50 on CIFAR-10 (7.1.1, 7.1.2); expected of nets of that depth."""

STREAM_SPEED_UP = 3.2
TAIL = 1.02
BATCHES = (1, 2, 8)
STREAMS_ON = "digits"
"""In the name of the case that streams are drawn from: its images can be moved and darkened."""

NOTES = (
    "early: share of evaluation inputs that a cache answered; agreement: with the bare model",
    "evaluation inputs took no part in training, tuning or calibration",
    "speed up: mean of the bare model over mean of the side, same inputs, in turns",
    "expected rows: what composition expects at batch 1, from measured costs and hit rates",
)


def run(
    quick: bool = False,
    cases: Sequence[str] = ("digits",),
    look_ups: LookUps = LookUps.AUTOMATIC,
    fashion: Path = FASHION,
    plots: Path | None = None,
) -> Report:
    """``cases``: of ``digits``, ``fashion`` and ``cifar``; those without data are left out."""
    report = Report(
        name="exits",
        machine=describe_machine(),
        versions=installed_versions("torch", "numpy", "scipy"),
        rows=[],
        checks=[],
        notes=list(NOTES),
    )
    makers: dict[str, Callable[[], Case | None]] = {
        "digits": lambda: digits_case(quick),
        "fashion": lambda: fashion_case(fashion, quick),
        "cifar": lambda: cifar_case(quick),
    }
    for name in cases:
        case = makers[name]()
        if case is None:
            report.notes.append(f"{name}: its data is not here, the case is left out")
        else:
            _measure_case(report, case, look_ups, quick, plots)
    return report


def main(arguments: Sequence[str]) -> int:
    """The command line; the exit status is 0 where every check holds."""
    parser = benchmark_parser("exits", __doc__, "less data, fewer variants and runs")
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=("digits", "fashion", "cifar"),
        default=["digits"],
        help="networks: ResNet-50 on digits or Fashion-MNIST, ResNet-56 on CIFAR-10",
    )
    parser.add_argument(
        "--fashion", type=Path, metavar="FOLDER", default=FASHION, help="with its four .gz files"
    )
    parser.add_argument(
        "--look-ups", choices=[way.value for way in LookUps], default=LookUps.AUTOMATIC.value
    )
    chosen = parser.parse_args(arguments)
    report = run(chosen.quick, chosen.cases, LookUps(chosen.look_ups), chosen.fashion, chosen.plot)
    return deliver(report, chosen, None)


def _measure_case(
    report: Report, case: Case, look_ups: LookUps, quick: bool, plots: Path | None
) -> None:
    settings = ExplorationSettings(
        accuracy=ACCURACY,
        points=4 if quick else 8,
        variants=case.variants,
        look_ups=look_ups,
        jobs=2,
    )
    case.folder.mkdir(parents=True, exist_ok=True)
    found = explore(case.model, case.training, case.folder, settings, case.more_to_fit)
    report.rows += expected_rows(case.name, found)
    if found.cascade is None:
        report.notes.append(f"{case.name}: no caches: {found.reason}")
        report.checks.append(Check(f"{case.name}: caches that pay", found.reason, "found", False))
        return
    bench = Bench(case.model)
    try:
        _measure_cascade(report, case, found, found.cascade, bench, quick, plots)
    finally:
        bench.close()


def _measure_cascade(
    report: Report,
    case: Case,
    found: Exploration,
    cascade: Cascade,
    bench: Bench,
    quick: bool,
    plots: Path | None,
) -> None:
    loaded = load_program(read_program(case.model), torch.device("cpu"))
    unseen = Unseen.of(loaded, cascade, case.training, case.evaluation)
    versions = {f"caches, {ACCURACY:.0%}": Version(cascade, cascade.synchronous)}
    if cascade.level(0.99) is not None:
        versions["caches, 99%"] = Version(cascade, cascade.synchronous, 0.99)
    else:
        report.notes.append(
            f"{case.name}: 99 % cannot be proved with {cascade.confidence:.0%} confidence on "
            f"{len(unseen.calibrate)} held-out inputs"
        )
    way = "in a lane" if cascade.synchronous else "in the model's thread"
    versions[f"look-ups {way}"] = Version(cascade, not cascade.synchronous)
    softmax = softmax_cascade(cascade, unseen)
    if softmax is not None:
        versions["softmax thresholds"] = Version(softmax, cascade.synchronous)
    for batch in BATCHES:
        sides = bench.measure(versions, case.evaluation, batch, quick)
        for name, side in sides.items():
            report.rows.append(_row(case.name, name, batch, side, sides[BARE]))
        if batch == 1:
            report.checks += _latency_checks(case, sides, sides[BARE])
            report.checks += _promise_checks(case.name, cascade, unseen, sides)
            if plots is not None:
                report.notes.append(f"plot: {plot_sides(case.name, sides, plots)}")
    if STREAMS_ON in case.name:
        _measure_streams(report, case, cascade, bench)


def _row(label: str, name: str, batch: int, side: Side, base: Side) -> dict[str, Any]:
    return {
        "model": label,
        "side": name,
        "batch": batch,
        "mean_ms": side.mean_s * 1e3,
        "median_ms": side.quantile_s(0.5) * 1e3,
        "p99_ms": side.quantile_s(0.99) * 1e3,
        "speed_up": base.mean_s / side.mean_s,
        "agreement": side.agreement,
        "early": side.early,
        "inputs": side.inputs,
    }


def _latency_checks(case: Case, sides: dict[str, Side], base: Side) -> list[Check]:
    checks = []
    for accuracy, wanted in SPEED_UPS.items():
        side = sides.get(f"caches, {accuracy:.0%}")
        if side is None:
            continue
        label = f"{case.name}, {accuracy:.0%}"
        speed_up = base.mean_s / side.mean_s
        tail = side.quantile_s(0.99) / base.quantile_s(0.99)
        checks += [
            Check(
                f"{label}: agreement", side.agreement, f">= {accuracy}", side.agreement >= accuracy
            ),
            Check(f"{label}: mean speed-up", speed_up, f">= {wanted}", speed_up >= wanted),
            Check(f"{label}: p99 over the bare model's", tail, f"<= {TAIL}", tail <= TAIL),
        ]
    return checks


def _promise_checks(
    label: str, cascade: Cascade, unseen: Unseen, sides: dict[str, Side]
) -> list[Check]:
    kept = repeated_calibrations(cascade, unseen)
    early = sides[f"caches, {ACCURACY:.0%}"].agreed_early
    audits = audits_until_off(early, ACCURACY, STATED_AUDITS) if early else None
    return [
        Check(
            f"{label}: calibrations of {CALIBRATIONS} whose promise other inputs refute, of "
            f"{kept.proved} that prove one",
            kept.refuted,
            0,
            kept.refuted == 0,
        ),
        Check(
            f"{label}: audited answers until an exit that became 10 % worse is off",
            audits,
            f"<= {STATED_AUDITS}",
            audits is not None,
        ),
    ]


def _measure_streams(report: Report, case: Case, cascade: Cascade, bench: Bench) -> None:
    loaded = load_program(read_program(case.model), torch.device("cpu"))
    rows = run_streams(bench, loaded, cascade, case.training, case.evaluation)
    for row in rows:
        for name, side in row.sides.items():
            label = f"{case.name}, Zipf {row.alpha}, period {row.period + 1}"
            report.rows.append(_row(label, name, 1, side, row.sides[BARE]))
        report.notes.append(
            f"Zipf {row.alpha}, period {row.period + 1}: {row.outcome}; "
            f"{row.retraining_s * 1e3:.0f} ms for a cache"
        )
    slowest_s = max(row.retraining_s for row in rows)
    report.checks.append(
        Check("retraining of a cache, s", slowest_s, "<= 0.5", 0 < slowest_s <= 0.5)
    )
    for alpha in ALPHAS:
        static = mean_speed_up(rows, alpha, "static caches")
        adaptive = mean_speed_up(rows, alpha, "adaptive caches")
        report.checks += [
            Check(
                f"Zipf {alpha}: mean speed-up with adaptation",
                adaptive,
                f">= {STREAM_SPEED_UP}",
                adaptive >= STREAM_SPEED_UP,
            ),
            Check(
                f"Zipf {alpha}: adaptive over static caches",
                adaptive / static,
                "> 1",
                adaptive > static,
            ),
        ]
