"""Thresholds that keep a promise: fixed-sequence testing on held-out data, no luck involved.

What is promised of a cascade with accuracy A at confidence 1 - d:

* of the inputs that an exit answers, those before it having missed, a share of at least A gets the
  base model's class (each exit), and
* the share of all inputs for which *any* exit would answer wrongly is at most 1 - A. This bounds
  the whole cascade's disagreement whatever subset of look-ups happens in time.

Tuning data (not held out) proposes cascades, that is thresholds of all exits, and an order in
which to try them, most promising first. The calibration data then tests each in that order, all
its promises at level d, and stops at the first that fails; any that passed may be used.

Proof. Take the first proposal of the order, if any, of which some promise is false. Using a false
proposal requires that this one passed, so that in particular its false promise passed its test,
an exact binomial one: probability at most d. The order and the proposals are independent of the
calibration data, so nothing else is drawn. Hence P(a used cascade breaks any promise) <= d, with
no correction for the number of exits or of proposals. An exit's count is binomial given the
number of inputs it answers, which is all that its bound needs. (Fixed-sequence testing of
intersection-union hypotheses; compare Angelopoulos et al., Learn then Test, 2021.)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv


def lower_bound(successes: int, trials: int, confidence: float) -> float:
    """One-sided: the probability of success is at least that, with ``confidence``.

    Exact (Clopper and Pearson, Biometrika 26, 1934).
    """
    if successes == 0:
        return 0.0
    return float(betaincinv(successes, trials - successes + 1, 1 - confidence))


def upper_bound(successes: int, trials: int, confidence: float) -> float:
    """One-sided: the probability of success is at most that; as ``lower_bound``."""
    return 1 - lower_bound(trials - successes, trials, confidence)


def fewest_to_prove(probability: float, confidence: float) -> int:
    """Trials without a single failure that prove ``probability``; below 1."""
    return math.ceil(math.log(1 - confidence) / math.log(probability))


Thresholds = tuple[float, ...]
"""Of all exits of a cascade, in its order; infinite: it answers nothing."""

STRICTNESS = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1.0)
"""Proposals: the share of the allowed disagreement that each may use up on the tuning data."""


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Inputs through one exit, [inputs], or all of a cascade in its order, [exits, inputs].

    ``scores`` float32; ``right``: the prediction is the base model's class; ``near``: the input is
    like the exit's training data, bool both. Once an exit that answers finds that it is not, no
    later one answers either.
    """

    scores: np.ndarray
    right: np.ndarray
    near: np.ndarray

    def take(self, rows: np.ndarray | slice) -> Scored:
        """The inputs of ``rows``."""
        return Scored(self.scores[..., rows], self.right[..., rows], self.near[..., rows])


def joined(parts: Sequence[Scored]) -> Scored:
    """The inputs of all parts, one after the other."""
    columns = zip(*((part.scores, part.right, part.near) for part in parts), strict=True)
    return Scored(*(np.concatenate(column, -1) for column in columns))


def in_order(parts: Sequence[Scored]) -> Scored:
    """Single exits put together as a cascade."""
    columns = zip(*((part.scores, part.right, part.near) for part in parts), strict=True)
    return Scored(*map(np.stack, columns))


@dataclass(frozen=True, slots=True)
class ExitCount:
    """Of inputs: ``answered`` by an exit, of these ``right``."""

    answered: int
    right: int


@dataclass(frozen=True, slots=True)
class CascadeCount:
    """``wrong_anywhere``: inputs that some exit would answer wrongly, looked up or not."""

    inputs: int
    exits: tuple[ExitCount, ...]
    wrong_anywhere: int

    def saving_s(self, saved_s: Sequence[float], burden_s: Sequence[float]) -> float:
        """Of an input on average, if an answer saves ``saved_s`` and a look-up costs ``burden_s``.

        By exit; one that answers nothing is taken not to be looked up.
        """
        total_s, waiting = 0.0, self.inputs
        for one, saved, burden in zip(self.exits, saved_s, burden_s, strict=True):
            if one.answered:
                total_s += one.answered * saved - waiting * burden
            waiting -= one.answered
        return total_s / max(self.inputs, 1)


@dataclass(frozen=True, slots=True)
class Promise:
    """``accuracy`` of every exit and of the cascade, with ``confidence`` for all together."""

    accuracy: float
    confidence: float

    def keeps(self, count: CascadeCount) -> bool:
        """Whether ``count`` proves it; an exit that answers nothing has nothing to prove."""
        return self.margin(count) >= 0

    def margin(self, count: CascadeCount) -> float:
        """How far the tightest of the bounds is on the right side; negative: not proved."""
        wrong = upper_bound(count.wrong_anywhere, count.inputs, self.confidence)
        margins = [1 - self.accuracy - wrong]
        for exit_count in count.exits:
            if exit_count.answered:
                proved = lower_bound(exit_count.right, exit_count.answered, self.confidence)
                margins.append(proved - self.accuracy)
        return min(margins)

    @property
    def fewest_inputs(self) -> int:
        """Held-out inputs that prove it where all of them are answered, and rightly."""
        return math.ceil(math.log(1 - self.confidence) / math.log(self.accuracy))


@dataclass(frozen=True, slots=True)
class Calibration:
    """The thresholds to use, and the held-out counts that prove them."""

    thresholds: Thresholds
    count: CascadeCount


def count_cascade(scored: Scored, thresholds: Sequence[float]) -> CascadeCount:
    """What the exits answer at ``thresholds``, each seeing what those before it missed.

    An exit of infinite threshold is not looked up, so nobody learns what it would find far.
    """
    limits = np.asarray(thresholds, np.float64)
    hits = scored.scores >= limits[:, None]
    hits &= np.isfinite(limits)[:, None]
    waiting = np.ones(hits.shape[1], bool)
    exits = []
    for index, (hit, right) in enumerate(zip(hits, scored.right, strict=True)):
        answered = hit & waiting
        exits.append(ExitCount(int(answered.sum()), int((answered & right).sum())))
        waiting &= ~hit
        if np.isfinite(limits[index]):
            waiting &= scored.near[index]
    wrong = (hits & ~scored.right).any(0)
    return CascadeCount(hits.shape[1], tuple(exits), int(wrong.sum()))


def threshold_for(scores: np.ndarray, right: np.ndarray, accuracy: float) -> float:
    """The least threshold at which answers are right with ``accuracy``; infinite where none is.

    Equal scores are answered together or not at all; a score of 0 is never answered.
    """
    order = np.argsort(-scores, kind="stable")
    ranked, ok = scores[order], np.cumsum(right[order])
    accurate = ok / np.arange(1, len(ok) + 1) >= accuracy
    last_of_equals = np.append(ranked[1:] != ranked[:-1], True)
    fitting = np.flatnonzero(accurate & last_of_equals & (ranked > 0))
    return float(ranked[fitting[-1]]) if len(fitting) else math.inf


def propose(
    tuning: Scored, accuracy: float, strictness: Sequence[float] = STRICTNESS
) -> list[Thresholds]:
    """Thresholds of the whole cascade: one set for each strictness and each choice of exits."""
    proposals = [
        proposal
        for choice in choices_of_exits(len(tuning.scores))
        for proposal in propose_for(choice, tuning, accuracy, strictness)
    ]
    return list(dict.fromkeys(proposals))


def choices_of_exits(count: int) -> list[frozenset[int]]:
    """All exits, all but one, and each alone: one that answers too little to prove anything must
    not take the others down."""
    every = frozenset(range(count))
    choices = [every, *(every - {left} for left in every), *(frozenset({one}) for one in every)]
    return [choice for choice in dict.fromkeys(choices) if choice]


def propose_for(
    choice: Collection[int],
    tuning: Scored,
    accuracy: float,
    strictness: Sequence[float] = STRICTNESS,
) -> list[Thresholds]:
    """For these exits, the strictest first: each exit's least threshold at which it is accurate
    enough on what those before it miss."""
    least = (1 - share * (1 - accuracy) for share in strictness)
    ways = (functools.partial(threshold_for, accuracy=each) for each in least)
    return list(dict.fromkeys(thresholds_by(tuning, choice, way) for way in ways))


def thresholds_by(
    tuning: Scored,
    choice: Collection[int],
    threshold_of: Callable[[np.ndarray, np.ndarray], float],
) -> Thresholds:
    """Of each exit ``threshold_of`` the scores that reach it and whether they are right; an exit
    that is not of the ``choice`` has an infinite one."""
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


def calibrate(
    tuning: Scored,
    held_out: Scored,
    promise: Promise,
    value: Callable[[CascadeCount], float],
) -> Calibration | None:
    """The proposal of greatest ``value`` (of its tuning counts) among those that are proved.

    None where not even the most promising one is.
    """
    proposals = propose(tuning, promise.accuracy)
    rows = held_out.scores.shape[1]
    return tested(in_sequence(proposals, tuning, rows, promise, value), held_out, promise)


def in_sequence(
    proposals: Collection[Thresholds],
    tuning: Scored,
    rows: int,
    promise: Promise,
    value: Callable[[CascadeCount], float],
) -> list[Thresholds]:
    """``proposals`` as ``rows`` held-out inputs are to test them: from safe to bold, each of
    greater ``value`` than those before it."""
    share = rows / max(tuning.scores.shape[1], 1)
    counts = {thresholds: count_cascade(tuning, thresholds) for thresholds in proposals}
    answering = [p for p in counts if any(e.answered for e in counts[p].exits)]
    kept: list[Thresholds] = []
    for p in sorted(answering, key=lambda p: -promise.margin(scaled(counts[p], share))):
        # No test is spent on what would not be used.
        if not kept or value(counts[p]) > value(counts[kept[-1]]):
            kept.append(p)
    return kept


def tested(
    sequence: Sequence[Thresholds], held_out: Scored, promise: Promise
) -> Calibration | None:
    """The last of ``sequence`` before the first that is not proved; None where that is the first
    one."""
    found = None
    for thresholds in sequence:
        count = count_cascade(held_out, thresholds)
        if not promise.keeps(count):
            break
        found = Calibration(thresholds, count)
    return found


def scaled(count: CascadeCount, share: float) -> CascadeCount:
    """The counts to expect in data of ``share`` times the size."""
    exits = []
    for exit_count in count.exits:
        answered = round(exit_count.answered * share)
        wrong = (exit_count.answered - exit_count.right) * share
        exits.append(ExitCount(answered, max(0, answered - int(np.ceil(wrong)))))
    wrong_anywhere = int(np.ceil(count.wrong_anywhere * share))
    return CascadeCount(max(1, round(count.inputs * share)), tuple(exits), wrong_anywhere)
