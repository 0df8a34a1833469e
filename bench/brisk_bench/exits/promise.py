"""Tests of whether the promise is kept, by the product's procedure, split after split of a pool.

A split draws rows to tune and rows to calibrate, as many as training has. With these the product's
own functions compose candidates, choose and calibrate, for the promise and all stricter ones. Then
the rest of the pool, which nothing of that has looked at, says how large the disagreement is. Two
things are not done anew for each split: predictors, selectors and gates are those of one training,
on rows outside of the pool; and the candidate that is calibrated is the one of least expected
latency, where ``brisk caches train`` benchmarks the candidates. Neither takes a held-out row.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from brisk.exits.base_model import run_in_batches
from brisk.exits.cascade import Exit, answer_form
from brisk.exits.data.samples import Samples
from brisk.exits.exploration import ExplorationSettings
from brisk.exits.exploration.composition import CompositionProblem, Tried, composition_problem
from brisk.exits.exploration.selection import Chosen, decide
from brisk.exits.exploration.shortlist import CandidateCascade
from brisk.exits.exploration.study import Studied
from brisk.exits.exploration.trial import evaluate
from brisk.exits.guarantee.calibration import (
    CascadeCount,
    Scored,
    count_cascade,
    in_order,
    joined,
    lower_bound,
    upper_bound,
)
from brisk.exits.heads.exit_model import given
from brisk.exits.learning.exporting import network_of
from brisk_bench.exits.data import ExitCase
from brisk_bench.harness.report import Check, Report, check_limit

SPLITS = {False: 100, True: 20}
"""Splits by whether the run is quick."""

INTERVAL = 0.95
"""Confidence of the intervals that are printed."""


def look_through(studied: Studied, samples: Samples) -> list[Scored]:
    """Run ``samples`` through every trained variant, in order."""
    exits = []
    for one in studied.tried:
        exits.append(
            Exit(
                point=studied.points[one.point],
                variant=one.variant,
                shape=one.shape,
                form=answer_form(studied.model.scores),
                model=one.model,
                evaluation_s=0.0,
                memory_bytes=0,
                judge=one.judge,
            )
        )
    networks = [network_of(exit_) for exit_ in exits]
    parts: list[list[Scored]] = [[] for _ in networks]
    points = [point for point in studied.points if point.position]
    start = 0
    model = studied.model
    for hidden, teacher in run_in_batches(model.base, points, model.scores, samples.inputs):
        rows = slice(start, start := start + len(teacher))
        at = dict(zip(points, hidden, strict=True))
        whole: dict[bytes, Scored] = {}  # by the model that reads the input, for every point
        for part, exit_, network in zip(parts, exits, networks, strict=True):
            if exit_.reads_input:
                inputs = given(
                    exit_.shape, {name: array[rows] for name, array in samples.inputs.items()}
                )
                if exit_.model not in whole:
                    found = exit_.evaluate(inputs)
                    right = found.logits.argmax(1) == teacher.argmax(1)
                    whole[exit_.model] = Scored(found.scores, right, found.near)
                part.append(whole[exit_.model])
            else:
                value = torch.tensor(at[exit_.point])
                part.append(evaluate(network, value, teacher.argmax(1)))
    return [joined(part) for part in parts]


def measure_promise(
    report: Report, case: ExitCase, studied: Studied, settings: ExplorationSettings, quick: bool
) -> None:
    """Add a row and checks for each promise, and a check that splits prove the first one."""
    division = case.division
    parts = [
        case.training.take(np.concatenate([division.tune, division.calibrate])),
        *(part for part in (case.evaluation, case.pool) if part is not None),
    ]
    pool = [look_through(studied, part) for part in parts]
    looked = [joined(list(ones)) for ones in zip(*pool, strict=True)]
    sizes = len(division.tune), len(division.calibrate)

    def problems_of(tried: Sequence[Tried]) -> dict[bool, CompositionProblem]:
        measured = studied.points, studied.cost, studied.profile, settings
        return {
            mode: composition_problem(tried, *measured, mode)
            for mode in settings.evaluation_mode.modes
        }

    counts = split_often(studied.tried, problems_of, settings, looked, sizes, SPLITS[quick])
    proved = len(counts[settings.accuracy])
    name = f"{case.name}: splits that prove {settings.accuracy:.1%}, of {SPLITS[quick]}"
    report.checks.append(check_limit(name, proved, ">", 0))
    for accuracy, results in counts.items():
        report.rows.append(_row(case.name, accuracy, results, SPLITS[quick]))
        report.checks += judge(case.name, accuracy, settings.confidence, results, SPLITS[quick])


def split_often(
    tried: Sequence[Tried],
    problems_of: Callable[[Sequence[Tried]], Mapping[bool, CompositionProblem]],
    settings: ExplorationSettings,
    pool: Sequence[Scored],
    sizes: tuple[int, int],
    splits: int,
) -> dict[float, list[CascadeCount]]:
    """Count on the rest of the pool, by accuracy, after each split that proves that accuracy.

    ``sizes``: rows to tune and to calibrate.
    """
    random = np.random.default_rng(0)
    counts: dict[float, list[CascadeCount]] = {
        promise.accuracy: [] for promise in (settings.promise, *settings.stricter)
    }
    for _ in range(splits):
        order = random.permutation(len(pool[0].scores))
        tune, calibrate, rest = np.split(order, np.cumsum(sizes))
        candidates = [
            dataclasses.replace(one, tune=looked.take(tune), held_out=looked.take(calibrate))
            for one, looked in zip(tried, pool, strict=True)
        ]
        choice = decide(problems_of(candidates), candidates, settings, least_expected)
        if isinstance(choice, Chosen):
            judged = in_order([pool[index].take(rest) for index in choice.tried])
            for level in choice.levels:
                counts[level.accuracy].append(count_cascade(judged, level.thresholds))
    return counts


def least_expected(candidates: Sequence[CandidateCascade]) -> CandidateCascade:
    return min(candidates, key=lambda one: one.latency_s)


def broken_cascades(accuracy: float, counts: Sequence[CascadeCount]) -> int:
    return sum(one.wrong_anywhere > (1 - accuracy) * one.inputs for one in counts)


def broken_exits(accuracy: float, counts: Sequence[CascadeCount]) -> int:
    """Count the splits after which an exit agrees less with the model than promised."""
    return sum(any(e.right < accuracy * e.answered for e in one.exits) for one in counts)


def _row(
    label: str, accuracy: float, counts: Sequence[CascadeCount], splits: int
) -> dict[str, Any]:
    """Return a row. Disagreements are of answers as served; ``interval`` is of broken cascades."""
    wrong = [sum(e.answered - e.right for e in one.exits) / one.inputs for one in counts] or [0.0]
    low, high = exact_interval(broken_cascades(accuracy, counts), splits)
    lengths = Counter(sum(e.answered > 0 for e in one.exits) for one in counts)
    return {
        "model": label,
        "side": f"promise of {accuracy:.1%}",
        "splits": splits,
        "proved": len(counts),
        "cascade_broken": broken_cascades(accuracy, counts),
        "exit_broken": broken_exits(accuracy, counts),
        "interval": f"{INTERVAL:.0%}, exact: {low:.1%} to {high:.1%}",
        "mean_disagreement": float(np.mean(wrong)),
        "most_disagreement": max(wrong),
        "judged_by": counts[0].inputs if counts else 0,
        "chains": ", ".join(f"{count} of {length}" for length, count in sorted(lengths.items())),
    }


def judge(
    label: str,
    accuracy: float,
    confidence: float,
    counts: Sequence[CascadeCount],
    splits: int,
) -> list[Check]:
    """Check that, at the upper end of its exact binomial interval, the share of broken splits is
    at most 1 - confidence, in percent.

    A split that proves nothing breaks nothing.
    """
    if not counts:
        return []
    texts = {
        f"more than {1 - accuracy:.1%} of the rest disagree": broken_cascades(accuracy, counts),
        f"an exit agrees with less than {accuracy:.1%} of what it answers": broken_exits(
            accuracy, counts
        ),
    }
    checks = []
    for text, broken in texts.items():
        name = (
            f"{label}, {accuracy:.1%}: share of splits after which {text}, upper end of the exact "
            f"{INTERVAL:.0%} interval, %"
        )
        highest = 100 * exact_interval(broken, splits)[1]
        checks.append(check_limit(name, highest, "<=", round(100 * (1 - confidence), 6), 3))
    return checks


def exact_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return a probability's two-sided interval (Clopper and Pearson) of INTERVAL's confidence."""
    each = 1 - (1 - INTERVAL) / 2
    return lower_bound(successes, trials, each), upper_bound(successes, trials, each)
