"""Thresholds that tuning inputs propose, and the order in which held-out inputs test them.

No held-out input has a part in proposals or order: that is all the proof asks of them
(``brisk.exits.guarantee.calibration``). There are two orders:

* ``from_safe_to_bold``, of training, has data enough to trust the margins on its tuning inputs.
* ``most_promising``, of adaptation, has some hundred recent inputs, which may look unlike those
  that propose; one proposal that is too bold and comes first is the end of a sequence. So a choice
  of exits is tried from the smallest share of answers that can prove anything to larger ones.
  Tuning inputs name the choices that promise most, and each has a sequence: with the error divided
  among every choice of exits, less would be proved.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from brisk.exits.guarantee.calibration import (
    Calibration,
    CascadeCount,
    Promise,
    Scored,
    Thresholds,
    count_cascade,
    fewest_to_prove,
    last_proved,
    proved,
    scaled,
    shared,
)

Value = Callable[[CascadeCount], float]
"""A function that returns the worth of a cascade's counts."""

STRICTNESS = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1.0)
"""The share of the allowed disagreement that each proposal may use up on the tuning inputs."""


def calibrate(
    tuning: Scored, held_out: Scored, promise: Promise, value: Value
) -> Calibration | None:
    """Return the proved proposal whose tuning counts are of greatest ``value``.

    One sequence, from safe to bold; None if not even its first proposal is proved.
    """
    proposals = propose(tuning, promise.accuracy)
    rows = held_out.scores.shape[1]
    sequence = from_safe_to_bold(proposals, tuning, rows, promise, value)
    return last_proved(sequence, held_out, promise)


def from_safe_to_bold(
    proposals: Collection[Thresholds],
    tuning: Scored,
    rows: int,
    promise: Promise,
    value: Value,
) -> list[Thresholds]:
    """Return ``proposals`` by their margin as ``rows`` held-out inputs are expected to show it,
    each of greater ``value`` than those before it."""
    share = rows / max(tuning.scores.shape[1], 1)
    counts = {thresholds: count_cascade(tuning, thresholds) for thresholds in proposals}
    answering = [p for p in counts if any(e.answered for e in counts[p].exits)]
    sequence: list[Thresholds] = []
    for p in sorted(answering, key=lambda p: -promise.margin(scaled(counts[p], share))):
        # No test is spent on what would not be used.
        if not sequence or value(counts[p]) > value(counts[sequence[-1]]):
            sequence.append(p)
    return sequence


def propose(
    tuning: Scored, accuracy: float, strictness: Sequence[float] = STRICTNESS
) -> list[Thresholds]:
    """Return one set of thresholds for each strictness and each choice of exits."""
    proposals = [
        proposal
        for choice in choices_of_exits(len(tuning.scores))
        for proposal in propose_for(choice, tuning, accuracy, strictness)
    ]
    return list(dict.fromkeys(proposals))


def choices_of_exits(count: int) -> list[frozenset[int]]:
    """Return all exits, all but one, and each alone: one that answers too little to prove anything
    must not take the others down."""
    every = frozenset(range(count))
    choices = [every, *(every - {left} for left in every), *(frozenset({one}) for one in every)]
    return [choice for choice in dict.fromkeys(choices) if choice]


def propose_for(
    choice: Collection[int],
    tuning: Scored,
    accuracy: float,
    strictness: Sequence[float] = STRICTNESS,
) -> list[Thresholds]:
    """Return thresholds of the exits of ``choice``, the strictest first: each exit's least one at
    which it is accurate enough on what those before it miss."""
    least = (1 - share * (1 - accuracy) for share in strictness)
    rules = (functools.partial(threshold_for, accuracy=each) for each in least)
    return list(dict.fromkeys(thresholds_by(tuning, choice, rule) for rule in rules))


def threshold_for(scores: np.ndarray, right: np.ndarray, accuracy: float) -> float:
    """Return the least threshold at which answers are right with ``accuracy``; infinite: none is.

    Equal scores are answered together or not at all; a score of 0 is never answered.
    """
    order = np.argsort(-scores, kind="stable")
    ranked, ok = scores[order], np.cumsum(right[order])
    accurate = ok / np.arange(1, len(ok) + 1) >= accuracy
    last_of_equals = np.append(ranked[1:] != ranked[:-1], True)
    fitting = np.flatnonzero(accurate & last_of_equals & (ranked > 0))
    return float(ranked[fitting[-1]]) if len(fitting) else math.inf


def thresholds_by(
    tuning: Scored,
    choice: Collection[int],
    threshold_of: Callable[[np.ndarray, np.ndarray], float],
) -> Thresholds:
    """Return what ``threshold_of`` says for each exit of ``choice``, of the scores that reach it
    and of whether they are right; other exits have an infinite threshold."""
    waiting = np.ones(tuning.scores.shape[1], bool)
    thresholds = []
    for index, (scores, right) in enumerate(zip(tuning.scores, tuning.right, strict=True)):
        threshold = math.inf
        if index in choice:
            threshold = threshold_of(scores[waiting], right[waiting])
        thresholds.append(threshold)
        waiting &= ~(scores >= threshold)
        if math.isfinite(threshold):
            waiting &= tuning.near[index]
    return tuple(thresholds)


SHARES = tuple(step / 20 for step in range(2, 21))
"""The share of the rows reaching an exit that it answers, from step to step; in the end all that
gate and floor let pass, as when a camera sees the same street for hours."""

SEQUENCES = 2
EXPECTED = 0.8
"""The confidence with which tuning inputs predict that a step will be proved."""

SPARE = 1.15
"""The answers expected in the first step, as a multiple of the fewest that prove anything."""

MOST_EXITS = 4
"""The most exits of which all choices are considered; of more, those of ``choices_of_exits``."""


def calibrate_cautiously(
    tuning: Scored, held_out: Scored, promise: Promise, value: Value
) -> Calibration | None:
    """Return the proved proposal whose tuning counts are of greatest ``value``.

    ``SEQUENCES`` sequences, each answering more from step to step.
    """
    each = shared(promise, SEQUENCES)
    share = held_out.scores.shape[1] / max(tuning.scores.shape[1], 1)
    passed = [
        calibration
        for sequence in most_promising(tuning, share, each, value)
        for calibration in proved(sequence, held_out, each)
    ]

    def tuning_value(one: Calibration) -> float:
        return value(count_cascade(tuning, one.thresholds))

    return max(passed, key=tuning_value, default=None)


def fewest_to_calibrate(promise: Promise) -> int:
    """Return the fewest held-out inputs of which ``calibrate_cautiously`` may prove a proposal."""
    each = shared(promise, SEQUENCES)
    return math.ceil(SPARE * fewest_to_prove(each.accuracy, each.confidence))


def most_promising(
    tuning: Scored, share: float, promise: Promise, value: Value
) -> list[list[Thresholds]]:
    """Return at most ``SEQUENCES`` sequences, one for a choice of exits; the best first.

    The worth of one is the greatest value among those of its steps that are expected to be proved
    on ``share`` times as many inputs.
    """
    fewest = SPARE * fewest_to_prove(promise.accuracy, promise.confidence)
    expected = Promise(promise.accuracy, EXPECTED)
    ranked: list[tuple[float, list[Thresholds]]] = []
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
            ranked.append((worth, steps))
    ranked.sort(key=lambda one: -one[0])
    return [steps for _, steps in ranked[:SEQUENCES]]


def answering_more_and_more(choice: frozenset[int], tuning: Scored) -> Iterator[Thresholds]:
    """Yield thresholds at which each exit of ``choice`` answers a share of the rows that reach
    it."""
    before: Thresholds | None = None
    for share in SHARES:
        thresholds = thresholds_by(tuning, choice, functools.partial(_answering, share=share))
        if thresholds != before:
            yield thresholds
        before = thresholds


def _answering(scores: np.ndarray, right: np.ndarray, share: float) -> float:
    """Return the threshold that ``share`` of the rows reach, or all that may be answered if fewer
    are."""
    ranked = np.sort(scores)[::-1]
    possible = int((ranked > 0).sum())
    if not possible:
        return math.inf
    return float(ranked[min(max(round(share * len(ranked)), 1), possible) - 1])


def _choices(exits: int) -> Sequence[frozenset[int]]:
    if exits > MOST_EXITS:
        return choices_of_exits(exits)
    sizes = range(1, exits + 1)
    return [frozenset(one) for size in sizes for one in itertools.combinations(range(exits), size)]
