"""Is a retrained cascade better, and does it keep its promise? Judged on rows it never saw.

First training has data enough to trust the order in which its tuning rows put the proposals
(``brisk.exits.guarantee.calibration``). Of recent traffic there are some hundred rows, which may
look unlike what proposes, and one proposal that is too bold and comes first is the end of all. So
a choice of exits is tried from the smallest share of answers that can prove anything to larger
ones, until a step is not proved. Tuning rows, which have no part in the proof, name the two
choices that promise most, and each gets half of the error: whatever passes in either sequence
keeps its promise with the stated confidence (Bonferroni over the two, the proof of a fixed
sequence within each). With the error divided among every choice of exits, less would be proved.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from brisk.exits.adaptation.features import Material, look_at
from brisk.exits.cascade import Cascade, Level
from brisk.exits.guarantee.calibration import (
    Calibration,
    CascadeCount,
    Promise,
    Scored,
    Thresholds,
    choices_of_exits,
    count_cascade,
    fewest_to_prove,
    lower_bound,
    scaled,
    thresholds_by,
    upper_bound,
)
from brisk.exits.heads.lookup import LookUp
from brisk.exits.learning.exporting import network_of

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
        thresholds = thresholds_by(tuning, choice, functools.partial(_answering, share=share))
        if thresholds != before:
            yield thresholds
        before = thresholds


def _answering(scores: np.ndarray, right: np.ndarray, share: float) -> float:
    """The threshold that ``share`` of the rows reach, or all that may be answered if fewer are."""
    ranked = np.sort(scores)[::-1]
    possible = int((ranked > 0).sum())
    if not possible:
        return math.inf
    return float(ranked[min(max(round(share * len(ranked)), 1), possible) - 1])


def _choices(exits: int) -> Sequence[frozenset[int]]:
    if exits > MOST_EXITS:
        return choices_of_exits(exits)
    sizes = range(1, exits + 1)
    return [frozenset(one) for size in sizes for one in combinations(range(exits), size)]


LEAST_GAIN = 0.01
"""What a new version has to save more than the old one, of what that saves."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Of a version on recent traffic. ``saved_s``: what an input saves on average. ``doubt``: how
    that speaks against what is promised; empty: it does not.
    """

    saved_s: float
    doubt: str

    @property
    def sound_s(self) -> float:
        """What is saved by answers that are as good as promised."""
        return 0.0 if self.doubt else self.saved_s


def standing_of(cascade: Cascade, recent: Material) -> Standing:
    """``recent``: held-out rows."""
    seen = look_at([network_of(exit_) for exit_ in cascade.exits], recent)
    counts = [count_cascade(seen, level.thresholds) for level in cascade.levels]
    doubts = (
        doubted(count, level.accuracy) for count, level in zip(counts, cascade.levels, strict=True)
    )
    saved_s = [exit_.saved_s for exit_ in cascade.exits]
    burden_s = [exit_.burden_s for exit_ in cascade.exits]
    return Standing(counts[0].saving_s(saved_s, burden_s), next(filter(None, doubts), ""))


def is_better(new_s: float, served: Standing) -> bool:
    """Whether saving ``new_s`` is enough to take the place of what is served."""
    return new_s > max(served.sound_s * (1 + LEAST_GAIN), 0.0)


@dataclass(frozen=True, slots=True)
class Judgement:
    """``levels`` to publish, none where the new version is refused; ``reason`` in words.

    ``saved_s``: what an input of recent traffic saves with it on average, 0 where nothing of it
    is proved.
    """

    levels: tuple[Level, ...]
    reason: str
    saved_s: float


def judge(
    cascade: Cascade,
    networks: Sequence[LookUp],
    tune: Scored,
    recent: Material,
    original: Material,
    served: Standing,
) -> Judgement:
    """``networks`` in place of the cascade's: the promise is proved on recent rows alone.

    ``tune`` proposes thresholds: rows as selectors judge them that never saw them. ``recent`` and
    ``original`` rows are held out; ``served`` is how the cascade stands on the former. Original
    ones would make it easy to prove and say nothing of the traffic. They must not refute it, so
    that nothing is learned at the cost of what the caches were made for. Recent traffic has to
    become faster by it; where that speaks against the version that is served, what keeps the
    promise takes its place also if it saves less.
    """
    saved_s = [exit_.saved_s for exit_ in cascade.exits]
    burden_s = [exit_.burden_s for exit_ in cascade.exits]

    def saved(count: CascadeCount) -> float:
        return count.saving_s(saved_s, burden_s)

    proving, refuting = look_at(networks, recent), look_at(networks, original)
    levels: list[Level] = []
    for level in cascade.levels:
        promise = Promise(level.accuracy, cascade.confidence)
        found = calibrate_cautiously(tune, proving, promise, saved)
        broken = found and refutation(count_cascade(refuting, found.thresholds), promise)
        if found is not None and not broken:
            levels.append(Level(level.accuracy, found.thresholds, found.count))
        elif not levels:
            reason = (
                f"on original inputs {broken}"
                if broken
                else (
                    f"accuracy {level.accuracy:.2%} cannot be proved with confidence "
                    f"{cascade.confidence:.0%} on {len(recent)} held-out recent inputs"
                )
            )
            return Judgement((), reason, 0.0)
    after_s = saved(count_cascade(proving, levels[0].thresholds))
    if not is_better(after_s, served):
        text = (
            f"it saves {after_s * 1e3:.3f} ms of a recent input on average, "
            f"the version that is served {served.saved_s * 1e3:.3f} ms"
        )
        return Judgement((), text, after_s)
    return Judgement(tuple(levels), "", after_s)


def doubted(count: CascadeCount, accuracy: float) -> str:
    """In words where less than ``accuracy`` is found in ``count``, however little that proves."""
    for index, one in enumerate(count.exits):
        if one.right < accuracy * one.answered:
            return f"exit {index} agrees in {one.right} of {one.answered} recent answers"
    if count.wrong_anywhere > (1 - accuracy) * count.inputs:
        return f"{count.wrong_anywhere} of {count.inputs} recent inputs are answered otherwise"
    return ""


def refutation(count: CascadeCount, promise: Promise) -> str:
    """In words how ``count`` refutes the promise, with its confidence; empty where it does not."""
    for index, exit_count in enumerate(count.exits):
        most = upper_bound(exit_count.right, exit_count.answered, promise.confidence)
        if exit_count.answered and most < promise.accuracy:
            return f"exit {index} agrees in {exit_count.right} of {exit_count.answered} answers"
    least_wrong = lower_bound(count.wrong_anywhere, count.inputs, promise.confidence)
    if least_wrong > 1 - promise.accuracy:
        return f"{count.wrong_anywhere} of {count.inputs} would be answered otherwise"
    return ""
