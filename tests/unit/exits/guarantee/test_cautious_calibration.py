"""Thresholds proved on recent rows: enough of them, and never more than is true."""

from __future__ import annotations

import math

import numpy as np

from brisk.exits.guarantee.calibration import CascadeCount, Promise, Scored, count_cascade
from brisk.exits.guarantee.proposals import (
    SEQUENCES,
    answering_more_and_more,
    calibrate_cautiously,
    most_promising,
)
from support.exits.scored import scored_near

PROMISE = Promise(0.97, 0.95)


def drawn(random: np.random.Generator, rows: int, worst: float, exits: int = 2) -> Scored:
    """Scores that say how sure to be: mistakes are the likelier the lower they are."""
    scores = random.uniform(0.01, 1, (exits, rows))
    right = random.uniform(0, 1, (exits, rows)) > worst * (1 - scores) ** 2
    return scored_near(scores.astype(np.float32), right)


def answered(count: CascadeCount) -> float:
    return sum(one.answered for one in count.exits) / count.inputs


def test_what_is_proved_is_true_and_mostly_something_is() -> None:
    random = np.random.default_rng(0)
    broken = proved = 0
    for _ in range(40):
        tuning, held_out = drawn(random, 240, 0.1), drawn(random, 600, 0.1)
        proof = calibrate_cautiously(tuning, held_out, PROMISE, answered)
        if proof is None:
            continue
        proved += 1
        truth = count_cascade(drawn(random, 5_000, 0.1), proof.thresholds)
        wrong = max((one.answered - one.right) / max(one.answered, 1) for one in truth.exits)
        broken += wrong > 0.03 or truth.wrong_anywhere / truth.inputs > 0.03
    assert proved >= 24
    assert broken <= 2, "as many as the confidence allows"


def test_nothing_is_proved_of_exits_that_are_wrong_too_often() -> None:
    random = np.random.default_rng(2)
    for _ in range(8):
        tuning, held_out = drawn(random, 240, 0.0), drawn(random, 600, 0.0)
        for part in (tuning, held_out):
            part.right[:] = random.uniform(0, 1, part.right.shape) > 0.06
        assert calibrate_cautiously(tuning, held_out, PROMISE, answered) is None


def test_only_so_many_sequences_are_tested_as_the_error_is_divided_among() -> None:
    random = np.random.default_rng(3)
    sequences = most_promising(drawn(random, 300, 0.1, 3), 2.0, PROMISE, answered)
    assert len(sequences) == SEQUENCES


def test_a_sequence_answers_more_from_step_to_step_and_leaves_other_exits_out() -> None:
    tuning = drawn(np.random.default_rng(4), 200, 0.1, 3)
    steps = list(answering_more_and_more(frozenset({0, 2}), tuning))
    assert all(math.isinf(middle) for _, middle, _ in steps)
    counts = [answered(count_cascade(tuning, step)) for step in steps]
    assert counts == sorted(counts)
    assert counts[0] < 0.25 < 0.9 < counts[-1]


def test_what_no_score_lets_through_is_never_answered() -> None:
    scores = np.zeros((1, 200), np.float32)
    scores[0, :40] = 0.9
    steps = list(answering_more_and_more(frozenset({0}), scored_near(scores, scores > 0)))
    assert all(step[0] > 0 for step in steps)
    assert steps[-1][0] == np.float32(0.9)


def test_where_an_exit_is_always_right_it_comes_to_answer_all() -> None:
    random = np.random.default_rng(5)
    parts = [drawn(random, rows, 0.0, 2) for rows in (60, 160)]
    proof = calibrate_cautiously(*parts, PROMISE, lambda count: float(count.exits[0].answered))
    assert proof is not None
    assert proof.count.exits[0].answered >= 155
