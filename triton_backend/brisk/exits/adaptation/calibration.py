"""Thresholds proved on little data that may look unlike what proposed them.

First training has data enough to trust the order in which its tuning rows put the proposals
(``brisk.exits.guarantee.calibration``). Of recent traffic there are some hundred, and one
proposal that is too bold and comes first is the end of all. So a choice of exits is tried from
the smallest share of answers that can prove anything to larger ones, until a step is not proved.
Tuning rows, which have no part in the proof, name the two choices that promise most, and each
gets half of the error: whatever passes in either sequence keeps its promise with the stated
confidence (Bonferroni over the two, the proof of a fixed sequence within each).

With the error divided among every choice of exits, as before, the same rows of digits whose
dominant class changes proved thresholds of a fifth to two fifths less speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import numpy as np

from brisk.exits.guarantee.bounds import fewest_to_prove
from brisk.exits.guarantee.calibration import (
    Calibration,
    CascadeCount,
    Promise,
    Scored,
    choices_of_exits,
    count_cascade,
    scaled,
)

SHARES = tuple(step / 20 for step in range(2, 21))
"""Of the rows that reach an exit: those it answers, from step to step; in the end all that gate
and floor let it, as where a camera sees the same street for hours."""

SEQUENCES = 2
EXPECTED = 0.8
"""Confidence with which tuning rows expect a step to be proved."""

SPARE = 1.15
"""Answers to be expected in the first step, over those without which nothing can be proved."""

MOST_EXITS = 4
"""Of which all choices are considered; of more, those that first training considers."""

Thresholds = tuple[float, ...]
Value = Callable[[CascadeCount], float]


def calibrate_cautiously(
    tuning: Scored, held_out: Scored, promise: Promise, value: Value
) -> Calibration | None:
    """The proposal of greatest ``value`` (of its tuning counts) among those that are proved."""
    error = (1 - promise.confidence) / SEQUENCES
    each = Promise(promise.accuracy, 1 - error)
    share = held_out.scores.shape[1] / max(tuning.scores.shape[1], 1)
    passed: list[Thresholds] = []
    for sequence in most_promising(tuning, share, each, value):
        for thresholds in sequence:
            if not each.keeps(count_cascade(held_out, thresholds)):
                break
            passed.append(thresholds)
    if not passed:
        return None
    best = max(passed, key=lambda thresholds: value(count_cascade(tuning, thresholds)))
    return Calibration(best, count_cascade(held_out, best))


def most_promising(
    tuning: Scored, share: float, promise: Promise, value: Value
) -> list[list[Thresholds]]:
    """``SEQUENCES`` sequences at most, one for a choice of exits; the best first.

    The worth of one is the greatest value among those of its steps that are expected to be proved
    on ``share`` times as many rows.
    """
    fewest = SPARE * fewest_to_prove(promise.accuracy, promise.confidence)
    expected = Promise(promise.accuracy, EXPECTED)
    found: list[tuple[float, list[Thresholds]]] = []
    for choice in _choices(len(tuning.scores)):
        steps, worth = [], 0.0
        for thresholds in answering_more_and_more(choice, tuning):
            count = count_cascade(tuning, thresholds)
            answers = [one.answered * share for one in count.exits if one.answered]
            if not answers or min(answers) < fewest:
                continue
            steps.append(thresholds)

            if expected.keeps(scaled(count, share)):
                worth = max(worth, value(count))
        if steps:
            found.append((worth, steps))
    found.sort(key=lambda one: -one[0])
    return [steps for _, steps in found[:SEQUENCES]]


def answering_more_and_more(choice: frozenset[int], tuning: Scored) -> Iterator[Thresholds]:
    """Thresholds at which each of these exits answers a share of the rows that reach it."""
    before: Thresholds | None = None
    for share in SHARES:
        waiting = np.ones(tuning.scores.shape[1], bool)
        made = []
        for index, scores in enumerate(tuning.scores):
            threshold = float("inf")
            if index in choice:
                threshold = _answering(scores[waiting], share)
            made.append(threshold)
            waiting &= ~(scores >= threshold)
            if tuning.far is not None and np.isfinite(threshold):
                waiting &= ~tuning.far[index]
        thresholds = tuple(made)
        if thresholds != before:
            yield thresholds
        before = thresholds


def _answering(scores: np.ndarray, share: float) -> float:
    """The threshold that ``share`` of the rows reach, or all that may be answered if fewer are."""
    ranked = np.sort(scores)[::-1]
    possible = int((ranked > 0).sum())
    if not possible:
        return float("inf")
    return float(ranked[min(max(round(share * len(ranked)), 1), possible) - 1])


def _choices(exits: int) -> Sequence[frozenset[int]]:
    if exits > MOST_EXITS:
        return choices_of_exits(exits)
    sizes = range(1, exits + 1)
    return [frozenset(one) for size in sizes for one in combinations(range(exits), size)]
