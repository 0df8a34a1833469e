"""`brisk bench exits`: a model with its learned caches against the same model without, in process.

Trains caches on one part of the data and measures on another that training never saw: latency,
agreement with the bare model and the share of early answers, at batch 1, 2 and 8, sides in turns;
with look-ups the other way round, with thresholds on the softmax instead of selectors, and beside
a smaller model and an int8 one. Then whether the promise is kept in repeated calibrations and an
audit notices a degradation, what learning from Zipf streams and from a video gains, and what
look-ups cost the slowest requests. The ways of composing and of exploring are compared by the
latency that each expects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from brisk.exits.exploration import ExplorationSettings, explore
from brisk.exits.exploration.settings import LookUps
from brisk_client.benchmarks.command_line import benchmark_parser, deliver
from brisk_client.benchmarks.exit_case import ACCURACY, measure_latency, measure_streams
from brisk_client.benchmarks.exit_data import (
    FASHION,
    Case,
    cifar_case,
    digits_case,
    fashion_case,
)
from brisk_client.benchmarks.exit_expectations import expected_rows
from brisk_client.benchmarks.exit_runs import Bench
from brisk_client.benchmarks.exit_tails import tail_rows
from brisk_client.benchmarks.machine import describe_machine, installed_versions
from brisk_client.report import Check, Report

PARTS = ("latency", "streams", "tails")
NOTES = (
    "early: share of evaluation inputs that a cache answered; agreement: with the bare model",
    "evaluation inputs took no part in training, tuning or calibration",
    "speed up: mean of the bare model over mean of the side, same inputs, in turns",
    "expected rows: what composition expects at batch 1, from measured costs and hit rates",
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """``parts`` of PARTS; none: only train. ``plots``: a folder to draw into."""

    quick: bool = False
    cases: Sequence[str] = ("digits",)
    parts: Sequence[str] = PARTS
    look_ups: LookUps = LookUps.AUTOMATIC
    fashion: Path = FASHION
    plots: Path | None = None
    video: Path | None = None


def run(wanted: Wanted) -> Report:
    """Cases without data are left out."""
    report = Report(
        name="exits",
        machine=describe_machine(),
        versions=installed_versions("torch", "numpy", "scipy"),
        rows=[],
        checks=[],
        notes=list(NOTES),
    )
    makers: dict[str, Callable[[], Case | None]] = {
        "digits": lambda: digits_case(wanted.quick),
        "fashion": lambda: fashion_case(wanted.fashion, wanted.quick),
        "cifar": lambda: cifar_case(wanted.quick),
    }
    for name in wanted.cases:
        case = makers[name]()
        if case is None:
            report.notes.append(f"{name}: its data is not here, the case is left out")
        else:
            _measure_case(report, case, wanted)
    if "tails" in wanted.parts:
        report.rows += tail_rows()
    return report


def main(arguments: Sequence[str]) -> int:
    """The command line; the exit status is 0 where every check holds."""
    parser = benchmark_parser("exits", __doc__, "less data, fewer variants and runs")
    parser.add_argument(
        "--cases",
        nargs="*",
        choices=("digits", "fashion", "cifar"),
        default=["digits"],
        help="networks: ResNet-50 on digits or Fashion-MNIST, ResNet-56 on CIFAR-10",
    )
    parser.add_argument(
        "--parts", nargs="*", choices=PARTS, default=list(PARTS), help="of it; none: only train"
    )
    parser.add_argument(
        "--fashion", type=Path, metavar="FOLDER", default=FASHION, help="with its four .gz files"
    )
    parser.add_argument(
        "--video", type=Path, metavar="FILE", help="a stream for cifar: of a camera that stays put"
    )
    parser.add_argument(
        "--look-ups", choices=[way.value for way in LookUps], default=LookUps.AUTOMATIC.value
    )
    chosen = parser.parse_args(arguments)
    wanted = Wanted(
        *(chosen.quick, chosen.cases, chosen.parts, LookUps(chosen.look_ups)),
        *(chosen.fashion, chosen.plot, chosen.video),
    )
    return deliver(run(wanted), chosen, None)


def _measure_case(report: Report, case: Case, wanted: Wanted) -> None:
    settings = ExplorationSettings(
        accuracy=ACCURACY,
        points=4 if wanted.quick else 8,
        variants=case.variants,
        look_ups=wanted.look_ups,
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
        if "latency" in wanted.parts:
            measure_latency(report, case, found.cascade, bench, wanted.quick, wanted.plots)
        if "streams" in wanted.parts:
            measure_streams(report, case, found.cascade, bench, wanted.video)
    finally:
        bench.close()
