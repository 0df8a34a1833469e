"""Thresholds proved on little data that may look unlike what proposed them.

First training has data enough to trust the order in which its tuning rows put the proposals
(``brisk.exits.calibration``). Of recent traffic there are a hundred or two, and one proposal that
is too bold and comes first is the end of all. So half of the error goes to that order, and half to
each choice of exits by itself, strictest thresholds first: whatever passes in any of these
sequences keeps its promise with the stated confidence (Bonferroni over the sequences, the proof of
a fixed sequence within each).
"""

from __future__ import annotations

from collections.abc import Callable

from brisk.exits.bounds import fewest_to_prove
from brisk.exits.calibration import (
    Calibration,
    CascadeCount,
    Promise,
    Scored,
    calibrate,
    choices_of_exits,
    count_cascade,
    propose_for,
)


def calibrate_cautiously(
    tuning: Scored, held_out: Scored, promise: Promise, value: Callable[[CascadeCount], float]
) -> Calibration | None:
    """The proposal of greatest ``value`` (of its tuning counts) among those that are proved."""
    choices = choices_of_exits(len(tuning.scores))
    error = (1 - promise.confidence) / 2
    bold = calibrate(tuning, held_out, Promise(promise.accuracy, 1 - error), value)
    passed = [] if bold is None else [bold.thresholds]
    shared = Promise(promise.accuracy, 1 - error / len(choices))
    for choice in choices:
        passed += _strictest_first(choice, tuning, held_out, shared)
    if not passed:
        return None
    best = max(passed, key=lambda thresholds: value(count_cascade(tuning, thresholds)))
    return Calibration(best, count_cascade(held_out, best))


def _strictest_first(
    choice: frozenset[int], tuning: Scored, held_out: Scored, promise: Promise
) -> list[tuple[float, ...]]:
    """Those that are proved before the first that is not.

    Left out is what would prove nothing even if all of the answers to be expected were right.
    """
    fewest = fewest_to_prove(promise.accuracy, promise.confidence)
    share = held_out.scores.shape[1] / max(tuning.scores.shape[1], 1)
    passed = []
    for thresholds in propose_for(choice, tuning, promise.accuracy):
        answered = [one.answered for one in count_cascade(tuning, thresholds).exits]
        if not any(answered) or any(0 < count * share < fewest for count in answered):
            continue
        if not promise.keeps(count_cascade(held_out, thresholds)):
            break
        passed.append(thresholds)
    return passed
