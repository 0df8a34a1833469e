"""`brisk bench exits`: a model with its learned caches against the same model without, in process.

Trains caches on one part of the data and measures on another that training never saw: latency,
agreement with the bare model and the share of early answers, at batch 1, 2 and 8, sides
interleaved. Further sides evaluate exits in the other thread, take thresholds on the softmax
instead of selectors, or are a smaller model and an int8 one. Other parts measure whether an audit
notices a degradation, whether the promise is kept over many splits of a large pool, what each
family of ways answers to out-of-distribution inputs, what each predictor variant and each way of
composing them gains, and what learning from Zipf streams and from a video gains.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from brisk.exits.exploration import ExplorationSettings
from brisk.exits.heads.exit_model import OF_CLASSES
from brisk_bench.exits.compositions import measure_compositions
from brisk_bench.exits.data import (
    ACCURACY,
    FASHION,
    ExitCase,
    cifar_case,
    digits_case,
    fashion_case,
)
from brisk_bench.exits.latency import measure_latency
from brisk_bench.exits.promise import measure_promise
from brisk_bench.exits.runs import ExitBench
from brisk_bench.exits.strange import SERVED, families, measure_strange
from brisk_bench.exits.streams import SEEDS, fresh_seeds, measure_streams
from brisk_bench.harness.command_line import benchmark_parser, deliver
from brisk_bench.harness.machine import new_report
from brisk_bench.harness.report import Check, Report

PARTS = ("latency", "strange", "promise", "variants", "streams")
OF_CACHES = frozenset(PARTS) - {"variants"}
"""Parts that need the caches which `brisk caches train` would make."""

NOTES = (
    "early: share of evaluation inputs that a cache answered; agreement: with the bare model, of "
    "all answers; early agreement: of those that a cache gave, which is what is promised",
    "evaluation inputs trained, tuned and calibrated nothing, the network not either, nor did a "
    "copy of one",
    "speed up: mean of the bare model over mean of the side, same inputs, in turns",
    "promise: predictors trained once, outside of the pool; the rest by the product's functions "
    "for each split, which share the pool; least expected latency stands for the race",
    "streams: a row is of all intervals of a stream; each Zipf stream is drawn with several "
    "seeds, fresh ones in every run unless --seeds gives them",
    "variants: measured on evaluation inputs; expected: by composition, of tuning rows",
)


def run(chosen: argparse.Namespace) -> Report:
    """Run what the options of ``main`` choose; cases without data are left out."""
    report = new_report("exits", ("torch", "numpy", "scipy"), NOTES)
    makers: dict[str, Callable[[], ExitCase | None]] = {
        "digits": lambda: digits_case(chosen.quick),
        "fashion": lambda: fashion_case(chosen.fashion, chosen.quick),
        "cifar": lambda: cifar_case(chosen.quick),
    }
    for name in chosen.cases:
        case = makers[name]()
        if case is None:
            report.notes.append(f"{name}: its data is not here, the case is left out")
        else:
            _measure_case(report, case, chosen)
    return report


def main(arguments: Sequence[str]) -> int:
    """Run the command line; the exit status is 0 if every check holds."""
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
        "--seeds",
        nargs="*",
        type=seed,
        default=[],
        metavar="N",
        help=f"of Zipf streams, to repeat a run; none: {SEEDS[False]} fresh ones",
    )
    chosen = parser.parse_args(arguments)
    return deliver(run(chosen), chosen, None)


def seed(text: str) -> int:
    """Parse a seed, as the type of an option."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is no seed: expected a number from 0")
    return int(text)


def _measure_case(report: Report, case: ExitCase, chosen: argparse.Namespace) -> None:
    settings = ExplorationSettings(
        accuracy=ACCURACY,
        points=4 if chosen.quick else 8,
        variants=case.variants,
        judges=OF_CLASSES,
        jobs=2,
    )
    with contextlib.closing(ExitBench(case.model)) as bench:
        if "variants" in chosen.parts:
            measure_compositions(report, case, ACCURACY, bench, chosen.quick)
        if chosen.parts and not OF_CACHES & set(chosen.parts):
            return
        exploration = case.explore(settings)
        if "promise" in chosen.parts:
            measure_promise(report, case, exploration.studied, settings, chosen.quick)
        if exploration.cascade is None:
            name = f"{case.name}: caches that pay"
            report.checks.append(Check(name, exploration.reason, "found", False))
            return
        alone = families(exploration.studied)
        served = alone.pop(SERVED, exploration.cascade)
        alone["ungated ways, too"] = exploration.cascade
        if "latency" in chosen.parts:
            measure_latency(report, case, served, alone, bench, chosen.quick, chosen.plot)
        if "strange" in chosen.parts:
            sides = {SERVED: served, **alone}
            measure_strange(report, case, sides, bench, chosen.fashion)
        if "streams" in chosen.parts:
            seeds = chosen.seeds or fresh_seeds(SEEDS[chosen.quick])
            measure_streams(report, case, served, bench, chosen.video, seeds)
