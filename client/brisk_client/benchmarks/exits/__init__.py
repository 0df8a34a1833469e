"""`brisk bench exits`: a model with its learned caches against the same model without, in process.

Trains caches on one part of the data and measures on another that training never saw: latency,
agreement with the bare model and the share of early answers, at batch 1, 2 and 8, sides in turns;
with look-ups the other way round, with thresholds on the softmax instead of selectors, and beside
a smaller model and an int8 one. Then whether an audit notices a degradation, whether the promise
is kept, split after split of a large pool, what every variant of predictor and every way of
composing them comes to, what learning from Zipf streams and from a video gains, and what look-ups
cost the slowest requests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brisk.exits.exploration import ExplorationSettings
from brisk.exits.exploration.settings import LookUps
from brisk_client.benchmarks.exits.case import ACCURACY, measure_latency, measure_streams
from brisk_client.benchmarks.exits.compositions import composition_rows
from brisk_client.benchmarks.exits.data import (
    FASHION,
    ExitCase,
    cifar_case,
    digits_case,
    fashion_case,
)
from brisk_client.benchmarks.exits.promise import promise_rows
from brisk_client.benchmarks.exits.runs import ExitBench
from brisk_client.benchmarks.exits.tails import tail_rows
from brisk_client.benchmarks.harness.command_line import benchmark_parser, deliver
from brisk_client.benchmarks.harness.machine import new_report
from brisk_client.report import Check, Report

PARTS = ("latency", "promise", "variants", "streams", "tails")
OF_CACHES = frozenset({"latency", "promise", "streams"})
"""Parts that need the caches which `brisk caches train` would make."""

NOTES = (
    "early: share of evaluation inputs that a cache answered; agreement: with the bare model",
    "evaluation inputs trained, tuned and calibrated nothing, the network not either, nor did a "
    "copy of one",
    "speed up: mean of the bare model over mean of the side, same inputs, in turns",
    "promise: predictors trained once, outside of the pool; the rest by the product's functions "
    "for each split, which share the pool; least expected latency stands for the race",
    "variants: measured on evaluation inputs; expected: by composition, of tuning rows",
)


@dataclass(frozen=True, slots=True)
class ExitsOptions:
    """``parts`` of PARTS; none: only train. ``plots``: a folder to draw into."""

    quick: bool = False
    cases: Sequence[str] = ("digits",)
    parts: Sequence[str] = PARTS
    look_ups: LookUps = LookUps.AUTOMATIC
    fashion: Path = FASHION
    plots: Path | None = None
    video: Path | None = None


def run(wanted: ExitsOptions) -> Report:
    """Cases without data are left out."""
    report = new_report("exits", ("torch", "numpy", "scipy"), NOTES)
    makers: dict[str, Callable[[], ExitCase | None]] = {
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
    look_ups = LookUps(chosen.look_ups)
    wanted = ExitsOptions(
        chosen.quick,
        chosen.cases,
        chosen.parts,
        look_ups,
        chosen.fashion,
        chosen.plot,
        chosen.video,
    )
    return deliver(run(wanted), chosen, None)


def _measure_case(report: Report, case: ExitCase, wanted: ExitsOptions) -> None:
    settings = ExplorationSettings(
        accuracy=ACCURACY,
        points=4 if wanted.quick else 8,
        variants=case.variants,
        look_ups=wanted.look_ups,
        jobs=2,
    )
    with contextlib.closing(ExitBench(case.model)) as bench:
        if "variants" in wanted.parts:
            _add(report, composition_rows(case, ACCURACY, bench, wanted.quick))
        if wanted.parts and not set(wanted.parts) & OF_CACHES:
            return
        found = case.explore(settings)
        if "promise" in wanted.parts:
            _add(report, promise_rows(case, found.studied, settings, wanted.quick))
        if found.cascade is None:
            name = f"{case.name}: caches that pay"
            report.checks.append(Check(name, found.reason, "found", False))
            return
        if "latency" in wanted.parts:
            measure_latency(report, case, found.cascade, bench, wanted.quick, wanted.plots)
        if "streams" in wanted.parts:
            measure_streams(report, case, found.cascade, bench, wanted.video)


def _add(report: Report, found: tuple[list[dict[str, Any]], list[Check]]) -> None:
    report.rows += found[0]
    report.checks += found[1]
