"""How many runs were really interrupted, by the workers' counters, and what follows from it."""

from __future__ import annotations

import pytest

from brisk.protocol.records import Sample
from brisk_bench.disb import equality
from brisk_bench.disb.equality import Outcome, add_outcome
from brisk_bench.disb.wire import counted
from brisk_bench.harness.report import Report

pytestmark = pytest.mark.timing


def _report() -> Report:
    return Report("preempt", {}, {}, [], [], [])


def test_parked_stopped_and_held_runs_count_and_nothing_else() -> None:
    samples = [
        Sample("brisk_preemptions_total", ("m", "1", "realtime"), (3,)),
        Sample("brisk_besteffort_freezes_total", (), (5,)),
        Sample("brisk_besteffort_held_seconds_total", (), (1_000,)),
        Sample("brisk_gate_closures_total", (), (99,)),
    ]
    assert counted(samples) == 1008
    assert counted(samples[3:]) == 0


def test_nineteen_of_twenty_must_be_real() -> None:
    report = _report()
    for interrupted in (9500, 9499):
        add_outcome(report, "runs", Outcome(10_000, interrupted, wrong=0), 10_000)
    assert [check.ok for check in report.checks] == [True, True, False, True]


def test_right_answers_of_runs_that_nothing_interrupted_prove_nothing() -> None:
    report = _report()
    add_outcome(report, "normal runs", Outcome(attempts=150, interrupted=12, wrong=0), 100)
    assert [check.ok for check in report.checks] == [False, True]
    assert not report.ok
    assert report.checks[0].name == "normal runs that were really interrupted, of 100"


def test_a_wrong_answer_fails_however_many_were_interrupted() -> None:
    report = _report()
    add_outcome(report, "normal runs", Outcome(attempts=100, interrupted=100, wrong=1), 100)
    assert [check.ok for check in report.checks] == [True, False]


def test_runs_of_both_classes_are_really_interrupted_at_the_wire() -> None:
    report = _report()
    equality.check_points(report, 20, threads=2)
    assert report.ok, [(check.name, check.value) for check in report.checks if not check.ok]
    assert len(report.checks) == 4


def test_a_policy_that_interrupts_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """``shared`` controls nothing: best-effort runs go on beside real-time ones."""
    monkeypatch.setattr(equality, "DEFAULT_POLICY", "shared")
    monkeypatch.setattr(equality, "INTERRUPTED_CLASSES", ("besteffort",))
    report = _report()
    equality.check_points(report, 10, threads=2)
    (real, right) = report.checks
    assert (real.ok, right.ok) == (False, True)
    assert real.value == 0
