"""Two versions of caches on the same traffic: which one stays."""

from __future__ import annotations

import numpy as np
import pytest

from brisk.exits.guarantee.audit import (
    FEWEST_AUDITED,
    FEWEST_ROWS,
    PATIENT_ROWS,
    TrialResult,
    VersionTrial,
)


def trial(
    present: float, candidate: float, rows: int, seed: int = 0, repairs: bool = False
) -> VersionTrial:
    """Each row saves half of the model with the probability given."""
    random, trial = np.random.default_rng(seed), VersionTrial(repairs)
    for saving, chance in ((trial.present, present), (trial.candidate, candidate)):
        for hit in random.random(rows) < chance:
            saving.add(1, 0.5 * float(hit))
    return trial


def test_runs_get_the_two_versions_in_turns() -> None:
    trial = VersionTrial()
    assert [trial.takes_candidate() for _ in range(6)] == [False, True] * 3


def test_nothing_is_said_before_both_have_had_enough_rows() -> None:
    assert trial(0.9, 0.0, FEWEST_ROWS - 1).verdict(FEWEST_AUDITED) is TrialResult.OPEN
    assert VersionTrial().verdict(0) is TrialResult.OPEN


@pytest.mark.parametrize(
    ("present", "candidate", "verdict"),
    [
        (0.5, 0.8, TrialResult.BETTER),
        (0.5, 0.5, TrialResult.BETTER),
        (0.0, 0.0, TrialResult.BETTER),
        (0.8, 0.5, TrialResult.WORSE),
        (0.9, 0.0, TrialResult.WORSE),
        (1.0, 0.9, TrialResult.WORSE),
    ],
)
def test_a_version_that_saves_clearly_less_does_not_stay(
    present: float, candidate: float, verdict: TrialResult
) -> None:
    trials = [trial(present, candidate, FEWEST_ROWS, seed) for seed in range(50)]
    verdicts = [each.verdict(FEWEST_AUDITED) for each in trials]
    assert verdicts.count(verdict) >= 45


def test_late_exits_spare_less_than_early_ones_however_often_they_answer() -> None:
    trial = VersionTrial()
    trial.present.add(100, 0.8)
    trial.present.add(100, 0.0)
    trial.candidate.add(200, 0.1)
    assert trial.verdict(FEWEST_AUDITED) is TrialResult.WORSE


def test_a_version_that_saves_more_is_audited_before_it_stays() -> None:
    assert trial(0.5, 0.8, FEWEST_ROWS).verdict(FEWEST_AUDITED - 1) is TrialResult.OPEN
    assert trial(0.5, 0.0, FEWEST_ROWS).verdict(0) is TrialResult.WORSE, "it has answered nothing"
    assert trial(0.5, 0.8, PATIENT_ROWS).verdict(0) is TrialResult.BETTER, "no audit comes through"


def test_a_version_that_repairs_the_promise_gets_all_runs_and_may_spare_less() -> None:
    assert all(VersionTrial(repairs=True).takes_candidate() for _ in range(6))
    few = trial(0.9, 0.3, FEWEST_ROWS, repairs=True)
    assert few.verdict(FEWEST_AUDITED - 1) is TrialResult.OPEN, "it has to pass its audits"
    assert few.verdict(FEWEST_AUDITED) is TrialResult.BETTER
    alone = VersionTrial(repairs=True)
    alone.candidate.add(FEWEST_ROWS, 0.5)
    assert alone.verdict(FEWEST_AUDITED) is TrialResult.BETTER, "the one before has no runs"


def test_a_version_that_repairs_is_left_only_where_rows_ask_for_what_it_lacks() -> None:
    """Runs of the one before that began sooner, and were answered early, say nothing."""
    safe = VersionTrial(repairs=True)
    safe.present.add(10, 0.9)
    safe.candidate.add(FEWEST_ROWS, 0.0)
    assert safe.verdict(0) is TrialResult.BETTER
    lacking = VersionTrial(repairs=True)
    lacking.lack(FEWEST_ROWS, is_candidate=True)
    assert lacking.verdict(0) is TrialResult.WORSE
