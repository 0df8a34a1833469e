"""The proof of thresholds on held-out inputs, one procedure for training and for adaptation.

A cascade with accuracy A at confidence 1 - d guarantees two things:

* of the inputs that an exit answers, those before it having missed, a share of at least A gets the
  base model's class (one hypothesis for each exit), and
* the share of all inputs for which *any* exit would answer wrongly is at most 1 - A. This bounds
  the whole cascade's disagreement whatever subset of evaluations ends in time.

Procedure. Tuning inputs, which are not held out, propose thresholds of all exits and put them in
one or a few sequences (``brisk.exits.guarantee.proposals``). ``shared`` divides d equally among
the sequences. ``proved`` tests the proposals of a sequence in their order, each hypothesis by an
exact binomial test on the held-out inputs at the sequence's share of d, and stops at the first
proposal that fails. Whatever passed in any sequence may be used.

Proof. Take the first proposal of a sequence, if any, that breaks the guarantee. Using a proposal
of the sequence that breaks it requires that this one passed, so that in particular its false
hypothesis passed its test: probability at most the sequence's share of d. Proposals and their
order are independent of the held-out inputs, so nothing else is drawn. An exit's count is binomial
given the number of inputs that it answers, which is all that its bound needs. The sum over the
sequences: P(a cascade that is used breaks the guarantee) <= d, with no correction for the number
of exits or of proposals.

Sources: fixed-sequence testing of intersection-union hypotheses (compare Angelopoulos et al.,
Learn then Test, 2021), Bonferroni's inequality over the sequences, and the exact bounds of Clopper
and Pearson (Biometrika 26, 1934).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv


def lower_bound(successes: int, trials: int, confidence: float) -> float:
    """Return a lower bound of the probability of success, with ``confidence``.

    Exact and one-sided (Clopper and Pearson, 1934).
    """
    if successes == 0:
        return 0.0
    return float(betaincinv(successes, trials - successes + 1, 1 - confidence))


def upper_bound(successes: int, trials: int, confidence: float) -> float:
    """Return an upper bound of the probability of success, like ``lower_bound``."""
    return 1 - lower_bound(trials - successes, trials, confidence)


def fewest_to_prove(probability: float, confidence: float) -> int:
    """Return how many trials without a failure prove a ``probability`` below 1."""
    return math.ceil(math.log(1 - confidence) / math.log(probability))


Thresholds = tuple[float, ...]
"""Thresholds of all exits of a cascade, in its order; infinite: the exit never answers."""


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Inputs through one exit, [inputs], or all of a cascade in its order, [exits, inputs]."""

    scores: np.ndarray
    """The scores, float32."""
    right: np.ndarray
    """Whether the prediction is the base model's class, bool."""
    near: np.ndarray
    """Whether the input is in the distribution of the exit's training data, bool. If an exit that
    answers finds an input out of distribution, no later exit answers that input either."""

    def take(self, rows: np.ndarray | slice) -> Scored:
        """Return the inputs of ``rows``."""
        return Scored(self.scores[..., rows], self.right[..., rows], self.near[..., rows])


def joined(parts: Sequence[Scored]) -> Scored:
    """Return the inputs of all parts, one after the other."""
    return Scored(
        np.concatenate([part.scores for part in parts], -1),
        np.concatenate([part.right for part in parts], -1),
        np.concatenate([part.near for part in parts], -1),
    )


def in_order(exits: Sequence[Scored]) -> Scored:
    """Return single exits put together as a cascade."""
    return Scored(
        np.stack([one.scores for one in exits]),
        np.stack([one.right for one in exits]),
        np.stack([one.near for one in exits]),
    )


@dataclass(frozen=True, slots=True)
class ExitCount:
    """The number of inputs that an exit answered, and how many of the answers were right."""

    answered: int
    right: int


@dataclass(frozen=True, slots=True)
class CascadeCount:
    """The counted answers of a cascade's exits to some inputs."""

    inputs: int
    exits: tuple[ExitCount, ...]
    wrong_anywhere: int
    """Inputs that some exit would answer wrongly, evaluated or not."""

    def saving_s(self, saved_s: Sequence[float], overhead_s: Sequence[float]) -> float:
        """Return the mean time that an input saves, in seconds.

        By exit, an answer saves ``saved_s`` and an evaluation costs ``overhead_s``; an exit that
        answers nothing counts as not evaluated.
        """
        total_s, waiting = 0.0, self.inputs
        for one, saved, overhead in zip(self.exits, saved_s, overhead_s, strict=True):
            if one.answered:
                total_s += one.answered * saved - waiting * overhead
            waiting -= one.answered
        return total_s / max(self.inputs, 1)


def count_cascade(scored: Scored, thresholds: Sequence[float]) -> CascadeCount:
    """Count what the exits answer at ``thresholds``, each seeing what those before it missed.

    An exit of infinite threshold is not evaluated, so it finds no input out of distribution.
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


def scaled(count: CascadeCount, share: float) -> CascadeCount:
    """Return the counts to expect in data of ``share`` times the size."""
    exits = []
    for exit_count in count.exits:
        answered = round(exit_count.answered * share)
        wrong = (exit_count.answered - exit_count.right) * share
        exits.append(ExitCount(answered, max(0, answered - int(np.ceil(wrong)))))
    wrong_anywhere = int(np.ceil(count.wrong_anywhere * share))
    return CascadeCount(max(1, round(count.inputs * share)), tuple(exits), wrong_anywhere)


@dataclass(frozen=True, slots=True)
class Promise:
    """The ``accuracy`` of every exit and of the cascade, with ``confidence`` for all together."""

    accuracy: float
    confidence: float

    def keeps(self, count: CascadeCount) -> bool:
        """Whether ``count`` proves the promise; an exit without answers has nothing to prove."""
        return self.margin(count) >= 0

    def margin(self, count: CascadeCount) -> float:
        """Return the margin of the tightest of the bounds; negative: the promise is not proved."""
        wrong = upper_bound(count.wrong_anywhere, count.inputs, self.confidence)
        margins = [1 - self.accuracy - wrong]
        for exit_count in count.exits:
            if exit_count.answered:
                bound = lower_bound(exit_count.right, exit_count.answered, self.confidence)
                margins.append(bound - self.accuracy)
        return min(margins)

    @property
    def fewest_inputs(self) -> int:
        """The number of held-out inputs that prove the promise if all are answered rightly."""
        return fewest_to_prove(self.accuracy, self.confidence)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Thresholds that are proved, and the held-out counts that prove them."""

    thresholds: Thresholds
    count: CascadeCount


def shared(promise: Promise, sequences: int) -> Promise:
    """Return the promise that each of ``sequences`` has to prove, so that all together hold with
    the confidence of ``promise``."""
    error = (1 - promise.confidence) / max(sequences, 1)
    return dataclasses.replace(promise, confidence=1 - error)


def proved(
    sequence: Sequence[Thresholds], held_out: Scored, promise: Promise
) -> list[Calibration]:
    """Return the proposals of ``sequence`` that come before the first that is not proved."""
    passed = []
    for thresholds in sequence:
        count = count_cascade(held_out, thresholds)
        if not promise.keeps(count):
            break
        passed.append(Calibration(thresholds, count))
    return passed


def last_proved(
    sequence: Sequence[Thresholds], held_out: Scored, promise: Promise
) -> Calibration | None:
    """Return the last proposal that ``proved`` returns, if any."""
    return next(reversed(proved(sequence, held_out, promise)), None)
