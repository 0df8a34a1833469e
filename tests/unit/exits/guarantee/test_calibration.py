"""The promise: exact bounds, and thresholds that keep it in repeated calibrations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from brisk.exits.guarantee.calibration import (
    CascadeCount,
    ExitCount,
    Promise,
    Scored,
    count_cascade,
    fewest_to_prove,
    lower_bound,
    upper_bound,
)
from brisk.exits.guarantee.proposals import calibrate, propose, threshold_for
from support.exits.scored import scored_near

DIFFICULTIES = 2_000_000


def drawn(random: np.random.Generator, inputs: int, exits: int = 3) -> Scored:
    """Exits of which each is right the more often, the higher its score and the later it is.

    The score says little about it: the chance of being right is a steep function of the
    difficulty, of which the score is a noisy view.
    """
    difficulty = random.uniform(0, 1, inputs)
    scores, right = [], []
    for depth in range(exits):
        reach = 0.35 + 0.2 * depth
        chance = 1 / (1 + np.exp((difficulty - reach) * 14))
        scores.append(np.clip(1 - difficulty + random.normal(0, 0.12, inputs), 0, 1))
        right.append(random.uniform(0, 1, inputs) < 0.1 + 0.9 * chance)
    return scored_near(np.array(scores, np.float32), np.array(right))


def answered(count: CascadeCount) -> float:
    return sum(exit_count.answered for exit_count in count.exits)


def test_bounds_are_those_of_the_binomial_distribution() -> None:
    low = lower_bound(95, 100, 0.95)
    assert binom.sf(94, 100, low) == pytest.approx(0.05, rel=1e-6)
    high = upper_bound(5, 100, 0.95)
    assert high == pytest.approx(1 - low)
    assert lower_bound(0, 10, 0.9) == 0.0
    assert upper_bound(10, 10, 0.9) == 1.0
    assert lower_bound(0, 0, 0.9) == 0.0


@pytest.mark.parametrize(("probability", "expected"), [(0.97, 99), (0.99, 299), (0.5, 5)])
def test_a_proof_without_failures_takes_so_many_trials(probability: float, expected: int) -> None:
    assert fewest_to_prove(probability, 0.95) == expected


def test_the_promise_is_kept_in_as_many_calibrations_as_is_stated() -> None:
    """100 calibrations, each on its own draw; broken ones are counted against a huge sample."""
    random = np.random.default_rng(0)
    promise = Promise(0.95, 0.90)
    truth = drawn(random, DIFFICULTIES // 10)
    tuning = drawn(random, 1500)
    broken = proved = 0
    for _ in range(100):
        proof = calibrate(tuning, drawn(random, 800), promise, answered)
        if proof is None:
            continue
        proved += 1
        real = count_cascade(truth, proof.thresholds)
        agreement = [e.right / e.answered for e in real.exits if e.answered]
        whole = 1 - real.wrong_anywhere / real.inputs
        broken += min([whole, *agreement]) < promise.accuracy
    assert proved > 60  # it is no proof to promise nothing
    assert broken <= binom.ppf(0.999, 100, 1 - promise.confidence)


def test_an_uncalibrated_choice_breaks_the_promise_far_more_often() -> None:
    """The same draws, thresholds taken where the tuning data just satisfies it."""
    random = np.random.default_rng(0)
    truth = drawn(random, DIFFICULTIES // 10)
    broken = 0
    for _ in range(40):
        real = count_cascade(truth, propose(drawn(random, 800), 0.95)[7])
        broken += any(e.right < 0.95 * e.answered for e in real.exits if e.answered)
    assert broken > 12


def test_an_exit_sees_only_what_those_before_it_miss() -> None:
    scores = np.array([[0.9, 0.9, 0.1, 0.1], [0.9, 0.1, 0.9, 0.9]], np.float32)
    right = np.array([[True, True, False, True], [False, True, True, False]])
    count = count_cascade(scored_near(scores, right), (0.5, 0.5))
    assert count.exits == (ExitCount(2, 2), ExitCount(2, 1))
    assert count.wrong_anywhere == 2  # the first input too: its second evaluation would be wrong


def test_an_infinite_threshold_answers_nothing() -> None:
    scores = np.array([[np.inf, 1.0]], np.float32)
    count = count_cascade(scored_near(scores, np.ones((1, 2), bool)), (float("inf"),))
    assert count.exits == (ExitCount(0, 0),)


def test_equal_scores_are_answered_together() -> None:
    scores = np.array([0.9, 0.8, 0.8, 0.8], np.float32)
    right = np.array([True, True, False, False])
    assert threshold_for(scores, right, 0.6) == pytest.approx(0.9)
    assert threshold_for(scores, right, 0.5) == pytest.approx(0.8)


def test_a_score_of_zero_is_never_answered() -> None:
    scores = np.zeros(5, np.float32)
    assert threshold_for(scores, np.ones(5, bool), 0.9) == float("inf")


def test_too_few_held_out_inputs_prove_nothing() -> None:
    random = np.random.default_rng(1)
    assert calibrate(drawn(random, 500), drawn(random, 40), Promise(0.97, 0.95), answered) is None


def test_an_exit_that_cannot_prove_itself_does_not_take_the_others_down() -> None:
    scores = np.array([[0.9] * 20 + [0.1] * 980, [0.9] * 1000], np.float32)
    right = np.ones((2, 1000), bool)
    right[0, 20:] = False
    scored = scored_near(scores, right)
    proof = calibrate(scored, scored, Promise(0.99, 0.95), answered)
    assert proof is not None
    assert proof.thresholds[0] == float("inf")
    assert proof.count.exits[1] == ExitCount(1000, 1000)


def test_an_out_of_distribution_input_is_answered_by_no_later_exit() -> None:
    scores = np.array([[0.0, 0.9], [0.9, 0.9]], np.float32)
    right, near = np.ones((2, 2), bool), np.array([[False, True], [True, True]])
    scored = Scored(scores, right, near)
    assert count_cascade(scored, (0.5, 0.5)).exits == (ExitCount(1, 1), ExitCount(0, 0))


def test_an_exit_that_is_not_evaluated_finds_nothing_out_of_distribution() -> None:
    """Else the calibration would not count what later exits answer in its stead."""
    scores = np.array([[0.0, 0.0], [0.9, 0.9]], np.float32)
    right = np.array([[True, True], [False, True]])
    scored = Scored(scores, right, np.array([[False, True], [True, True]]))
    count = count_cascade(scored, (float("inf"), 0.5))
    assert count.exits == (ExitCount(0, 0), ExitCount(2, 1))
    assert count.wrong_anywhere == 1
