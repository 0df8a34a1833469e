"""Is the promise kept: by the product's procedure, split after split of a large pool?

A split draws rows to tune and rows to calibrate, as many as training has. With these the
product's own functions compose finalists, choose and calibrate, for the promise and all stricter
ones. Then the rest of the pool, which nothing of that has looked at, says how large the
disagreement is. Two things are not done anew for each split: predictors, selectors and gates are
those of one training, on rows outside of the pool; and the finalist that is calibrated is the one
of least expected latency where ``brisk caches train`` races them, both being decided without any
held-out row.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from brisk.exits.base_model import run_in_batches
from brisk.exits.cascade import Exit
from brisk.exits.data.samples import Samples
from brisk.exits.exploration import ExplorationSettings
from brisk.exits.exploration.composition import Tried, composition_problem
from brisk.exits.exploration.explore import Studied
from brisk.exits.exploration.selection import Chosen, decide
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
from brisk.exits.heads.lookup import network_of
from brisk_client.benchmarks.exits.data import ExitCase
from brisk_client.report import Check

SPLITS = {False: 100, True: 20}
"""By whether it has to be quick."""

INTERVAL = 0.95
"""Confidence of the intervals that are printed."""


@dataclass(slots=True)
class SplitTally:
    """Of one promise: splits that prove it, and those of them whose rest breaks it.

    ``disagreements``: of the answers as served, of each split. ``lengths``: how often a chain had
    so many exits.
    """

    proved: int = 0
    cascade_broken: int = 0
    exit_broken: int = 0
    disagreements: list[float] = field(default_factory=list)
    lengths: Counter[int] = field(default_factory=Counter)


def look_through(studied: Studied, samples: Samples) -> list[Scored]:
    """``samples`` through every trained variant, in order."""
    networks = []
    for one in studied.tried:
        point, classes = studied.points[one.point], studied.scores.classes
        made = Exit(point, one.variant, one.shape, classes, one.model, 0.0, 0)
        networks.append(network_of(made))
    parts: list[list[Scored]] = [[] for _ in networks]
    read = studied.base, studied.points, studied.scores, samples.inputs
    for hidden, teacher in run_in_batches(*read):
        for part, one, network in zip(parts, studied.tried, networks, strict=True):
            part.append(evaluate(network, torch.tensor(hidden[one.point]), teacher.argmax(1)))
    return [joined(part) for part in parts]


def promise_rows(
    case: ExitCase, studied: Studied, settings: ExplorationSettings, quick: bool
) -> tuple[list[dict[str, Any]], list[Check]]:
    """A row and two checks for each promise that was proved at all; one check that one was."""
    division = case.division
    parts = [
        case.training.take(np.concatenate([division.tune, division.calibrate])),
        *(part for part in (case.evaluation, case.pool) if part is not None),
    ]
    pool = [look_through(studied, part) for part in parts]
    looked = [joined(list(ones)) for ones in zip(*pool, strict=True)]
    sizes = len(division.tune), len(division.calibrate)
    tallies = split_often(studied, settings, looked, sizes, SPLITS[quick])
    rest = len(looked[0].scores) - sum(sizes)
    rows, checks = [], []
    for accuracy, tally in tallies.items():
        rows.append(_row(case.name, accuracy, tally, SPLITS[quick], rest))
        checks += _checks(case.name, accuracy, settings.confidence, tally, SPLITS[quick])
    proved = tallies[settings.accuracy].proved
    name = f"{case.name}: splits that prove {settings.accuracy:.1%}, of {SPLITS[quick]}"
    return rows, [Check(name, proved, "> 0", proved > 0), *checks]


def split_often(
    studied: Studied,
    settings: ExplorationSettings,
    pool: Sequence[Scored],
    sizes: tuple[int, int],
    splits: int,
) -> dict[float, SplitTally]:
    """By accuracy. ``sizes``: rows to tune and to calibrate; the rest of the pool judges."""
    random = np.random.default_rng(0)
    promises = (settings.promise, *settings.stricter)
    tallies = {promise.accuracy: SplitTally() for promise in promises}
    for _ in range(splits):
        order = random.permutation(len(pool[0].scores))
        tune, calibrate, rest = np.split(order, np.cumsum(sizes))
        chosen = _chosen(studied, settings, pool, tune, calibrate)
        if chosen is None:
            continue
        seen = in_order([pool[index].take(rest) for index in chosen.tried])
        for level in chosen.levels:
            _note(tallies[level.accuracy], count_cascade(seen, level.thresholds), level.accuracy)
    return tallies


def _chosen(
    studied: Studied,
    settings: ExplorationSettings,
    pool: Sequence[Scored],
    tune: np.ndarray,
    calibrate: np.ndarray,
) -> Chosen | None:
    """What the product makes of these rows; None where it proves nothing."""
    tried: list[Tried] = [
        dataclasses.replace(one, tune=seen.take(tune), held_out=seen.take(calibrate))
        for one, seen in zip(studied.tried, pool, strict=True)
    ]
    problems = {
        synchronous: composition_problem(
            *(tried, studied.points, studied.cost, studied.profile, settings, synchronous)
        )
        for synchronous in settings.look_ups.modes
    }
    found = decide(
        problems, tried, settings, lambda entered: min(entered, key=lambda one: one.latency_s)
    )
    return found if isinstance(found, Chosen) else None


def _note(tally: SplitTally, count: CascadeCount, accuracy: float) -> None:
    tally.proved += 1
    answering = [one for one in count.exits if one.answered]
    tally.lengths[len(answering)] += 1
    served_wrong = sum(one.answered - one.right for one in answering)
    tally.disagreements.append(served_wrong / count.inputs)
    tally.cascade_broken += count.wrong_anywhere > (1 - accuracy) * count.inputs
    tally.exit_broken += any(one.right < accuracy * one.answered for one in answering)


def _row(label: str, accuracy: float, tally: SplitTally, splits: int, rest: int) -> dict[str, Any]:
    found = tally.disagreements or [0.0]
    lengths = (f"{count} of {length}" for length, count in sorted(tally.lengths.items()))
    return {
        "model": label,
        "side": f"promise of {accuracy:.1%}",
        "splits": splits,
        "proved": tally.proved,
        "cascade_broken": tally.cascade_broken,
        "exit_broken": tally.exit_broken,
        "mean_disagreement": float(np.mean(found)),
        "most_disagreement": max(found),
        "judged_by": rest,
        "chains": ", ".join(lengths),
    }


def _checks(
    label: str, accuracy: float, confidence: float, tally: SplitTally, splits: int
) -> list[Check]:
    """That the share of broken splits is not above 1 - confidence, by the exact binomial
    interval; a split that proves nothing breaks nothing."""
    if not tally.proved:
        return []
    counts = {
        f"more than {1 - accuracy:.1%} of the rest disagree": tally.cascade_broken,
        f"an exit agrees with less than {accuracy:.1%} of what it answers": tally.exit_broken,
    }
    checks, expected = [], f"an interval that reaches down to {1 - confidence:.0%}"
    for text, broken in counts.items():
        low, high = exact_interval(broken, splits)
        name = f"{label}, {accuracy:.1%}: splits after which {text}"
        interval = f"exact {INTERVAL:.0%} interval {low:.1%} to {high:.1%}"
        found = f"{broken} of {splits}, {interval}"
        checks.append(Check(name, found, expected, low <= 1 - confidence))
    return checks


def exact_interval(successes: int, trials: int) -> tuple[float, float]:
    """Of a probability, with confidence ``INTERVAL`` (Clopper and Pearson, two-sided)."""
    each = 1 - (1 - INTERVAL) / 2
    return lower_bound(successes, trials, each), upper_bound(successes, trials, each)
