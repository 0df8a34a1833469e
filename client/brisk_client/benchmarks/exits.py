"""`brisk bench exits`: a model with its learned caches against the same model without, in process.

Trains caches on one part of the data and measures on another that training never saw: latency,
agreement with the bare model and the share of early answers, at batch 1, 2 and 8, sides in turns.
The ways of composing (exact, the paper's score, greedy) and of exploring (one variant only) are
compared by the latency that each expects.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from brisk.exits.composition import (
    CompositionProblem,
    compose_by_expected_latency,
    compose_by_hit_rate,
    compose_by_latency_gain,
    compose_by_score,
)
from brisk.exits.exploration import Exploration, ExplorationSettings, explore
from brisk.exits.exploration.settings import LookUps
from brisk_client.benchmarks.exit_data import Case, cifar_case, digits_case
from brisk_client.benchmarks.exit_runs import Side, measure_sides
from brisk_client.benchmarks.machine import describe_machine, installed_versions
from brisk_client.report import Check, Report, plot_bars, show, write_json

ACCURACIES = (0.97, 0.99)
SPEED_UPS = {0.97: 1.95, 0.99: 1.41}
"""GATI's for ResNet-50 on CIFAR-10 (7.1.1, 7.1.2); expected of nets of that depth."""

TAIL = 1.02
BATCHES = (1, 2, 8)

NOTES = (
    "early: share of evaluation inputs that a cache answered; agreement: with the bare model",
    "evaluation inputs took no part in training, tuning or calibration",
    "speed up: mean of the bare model over mean of the side, same inputs, in turns",
    "expected rows: what composition expects at batch 1, from measured costs and hit rates",
)


def run(
    quick: bool = False,
    cifar: bool = False,
    look_ups: LookUps = LookUps.AUTOMATIC,
) -> Report:
    """The digits case, and with ``cifar`` the 56-layer ResNet where its data is there."""
    report = Report(
        name="exits",
        machine=describe_machine(),
        versions=installed_versions("torch", "numpy", "scipy"),
        rows=[],
        checks=[],
        notes=list(NOTES),
    )
    with tempfile.TemporaryDirectory() as folder:
        cases = [digits_case(Path(folder), quick)]
        if cifar:
            found = cifar_case(Path(folder), quick)
            cases += [found] if found is not None else []
            if found is None:
                report.notes.append("no CIFAR-10 data here: that case is left out")
        for case in cases:
            for accuracy in ACCURACIES[:1] if quick else ACCURACIES:
                _measure_case(report, case, accuracy, look_ups, quick)
    return report


def main(arguments: Sequence[str]) -> int:
    """The command line; the exit status is 0 where every check holds."""
    parser = argparse.ArgumentParser(prog="brisk bench exits", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less data, fewer variants and runs")
    parser.add_argument("--cifar", action="store_true", help="ResNet-56 on CIFAR-10 too")
    parser.add_argument(
        "--look-ups", choices=[way.value for way in LookUps], default=LookUps.AUTOMATIC.value
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="write bar charts there")
    chosen = parser.parse_args(arguments)
    report = run(chosen.quick, chosen.cifar, LookUps(chosen.look_ups))
    show(report)
    if chosen.json:
        write_json(report, chosen.json)
    if chosen.plot:
        plot_bars(report, chosen.plot, "mean_ms", "model", "side")
    return 0 if report.ok else 1


def _measure_case(
    report: Report, case: Case, accuracy: float, look_ups: LookUps, quick: bool
) -> None:
    settings = ExplorationSettings(
        accuracy=accuracy,
        points=4 if quick else 6,
        variants=case.variants,
        look_ups=look_ups,
    )
    case.folder.mkdir(parents=True, exist_ok=True)
    found = explore(case.model, case.training, case.folder, settings, case.more_to_fit)
    label = f"{case.name}, {accuracy:.0%}"
    report.rows += _expected_rows(label, found)
    if found.cascade is None:
        report.notes.append(f"{label}: no caches: {found.reason}")
        return
    for batch in BATCHES:
        sides = measure_sides(case.model, found.cascade, case.evaluation, batch, quick)
        base = sides["bare"]
        for name, side in sides.items():
            report.rows.append(_row(label, name, batch, side, base))
        if batch == 1:
            report.checks += _checks(label, accuracy, case.is_deep, sides["caches"], base)


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


def _checks(label: str, accuracy: float, is_deep: bool, side: Side, base: Side) -> list[Check]:
    speed_up = base.mean_s / side.mean_s
    wanted = SPEED_UPS[accuracy] if is_deep else 1.0
    tail = side.quantile_s(0.99) / base.quantile_s(0.99)
    return [
        Check(f"{label}: agreement", side.agreement, f">= {accuracy}", side.agreement >= accuracy),
        Check(f"{label}: mean speed-up", speed_up, f">= {wanted}", speed_up >= wanted),
        Check(f"{label}: p99 over the bare model's", tail, f"<= {TAIL}", tail <= TAIL),
    ]


def _expected_rows(label: str, found: Exploration) -> list[dict[str, Any]]:
    """Compositions and explorations of one variant, by what they expect (Fig. 24, 25)."""
    problem = found.problem
    if not problem.candidates:
        return []
    ways = {
        "exact": compose_by_expected_latency(problem),
        "score": compose_by_score(problem)[1],
        "greedy by latency gain": compose_by_latency_gain(problem),
        "greedy by hit rate": compose_by_hit_rate(problem),
    }
    rows = [
        {
            "model": label,
            "side": f"expected, {name}",
            "mean_ms": way.latency_s * 1e3,
            "speed_up": problem.total_s / way.latency_s,
            "agreement": way.accuracy,
            "early": sum(way.answered),
        }
        for name, way in ways.items()
    ]
    for variant in dict.fromkeys(one.variant for one in problem.candidates):
        way = compose_by_expected_latency(_only(problem, variant))
        rows.append(
            {
                "model": label,
                "side": f"expected, {variant} alone",
                "mean_ms": way.latency_s * 1e3,
                "speed_up": problem.total_s / way.latency_s,
                "agreement": way.accuracy,
                "early": sum(way.answered),
            }
        )
    return rows


def _only(problem: CompositionProblem, variant: str) -> CompositionProblem:
    import dataclasses

    kept = [i for i, one in enumerate(problem.candidates) if one.variant == variant]
    outcomes = problem.outcomes
    if outcomes is not None:
        rows = np.array(kept)
        outcomes = dataclasses.replace(
            outcomes, hits=outcomes.hits[rows], right=outcomes.right[rows]
        )
    candidates = tuple(problem.candidates[index] for index in kept)
    return dataclasses.replace(problem, candidates=candidates, outcomes=outcomes)
