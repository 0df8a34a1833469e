"""What rounds of the workloads say: ratios, whether the machine was quiet, checks."""

from __future__ import annotations

from typing import Any

import pytest

from brisk_bench.disb.comparison.checks import add_checks
from brisk_bench.disb.comparison.rounds import wants_another, workload_rows
from brisk_bench.disb.comparison.sampling import (
    Round,
    WorkloadSample,
    describe,
    joined,
    round_ratio,
    summarise_side,
)
from brisk_bench.disb.plan import plan_of
from brisk_bench.harness.report import REASON, Report
from brisk_bench.preempt import make_parser

FEW = "too few answers (9 of 1,000)"


def _run(ms: float, per_s: float = 5.0, count: int = 1000, **changed: Any) -> WorkloadSample:
    values: dict[str, Any] = {
        "latency_ms": [ms] * count,
        "per_s": per_s,
        "best_effort_per_s": per_s / 2,
        "dropped": 0,
        "failed": 0,
        "lag_ms": [],
        "generator_share": 0.02,
        "busy": 0.75,
        "stolen": 0.01,
    }
    return WorkloadSample(**{**values, **changed})


def _round(number: int, alone: WorkloadSample, after: WorkloadSample, **sides: Any) -> Round:
    return Round(number, 2.5, 60.0, alone, after, sides)


def _quiet(number: int, ms: float, preemptive: WorkloadSample) -> Round:
    return _round(number, _run(ms), _run(ms), preemptive=preemptive)


def _report(rows: list[dict[str, Any]]) -> Report:
    return Report("preempt", {}, {}, rows, [])


def test_a_run_of_laps_has_all_their_requests_and_their_mean_pace() -> None:
    run = joined([_run(10.0, 4.0, 2, dropped=1), _run(20.0, 6.0, 1, failed=2, busy=0.25)])
    assert run.latency_ms == [10.0, 10.0, 20.0]
    assert (run.per_s, run.best_effort_per_s, run.dropped, run.failed) == (5.0, 2.5, 1, 2)
    assert run.busy == pytest.approx(0.5)


def test_ratios_of_means_are_taken_within_a_round_and_tails_of_all_rounds() -> None:
    """The second round's machine is twice as slow; the side is 10 % slower in the first."""
    rounds = [_quiet(1, 10.0, _run(11.0, 15.0)), _quiet(2, 20.0, _run(24.0, 10.0))]
    row = summarise_side(rounds, "preemptive")
    assert row["mean_ratio"] == pytest.approx(1.15)
    assert row["mean_ratio_range"] == [1.1, 1.2]
    assert row["p99_ratio"] == pytest.approx(24 / 20)
    assert row["throughput_ratio"] == pytest.approx(2.5)
    assert row["mean_ms"] == pytest.approx(17.5)
    assert row["p99_ms"] == 24.0
    assert row["quantiles_ms"] == [11.0] * 51 + [24.0] * 50, "0 % to 99.5 % of both rounds"
    assert row["p999_ms"] == "too few answers (2,000 of 10,000)"
    assert row["round_best_effort_per_s"] == [7.5, 5.0]
    assert summarise_side(rounds, "RT-only")["realtime_requests"] == 4000, "before and after"


def test_what_a_side_is_held_against_is_the_time_alone_before_and_after() -> None:
    both = _round(1, _run(10.0), _run(10.2), preemptive=_run(10.1))
    assert summarise_side([both], "preemptive")["mean_ratio"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (_run(10.29), ""),
        (_run(9.72), ""),
        (_run(10.4), "mean 4.0 %, p99 4.0 %"),
        (_run(9.6), "mean 4.2 %, p99 4.2 %"),
        (_run(10.0, latency_ms=[10.0] * 985 + [11.5] * 15), "mean 0.2 %, p99 15.0 %"),
        (_run(10.0, count=999), "p99: too few answers (999 of 1,000)"),
        (_run(10.0, count=0), "no real-time request alone"),
    ],
)
def test_a_round_whose_runs_alone_differ_is_known(after: WorkloadSample, why: str) -> None:
    assert _round(1, _run(10.0), after).disturbance == why


@pytest.mark.parametrize(
    ("arguments", "found", "expected"),
    [
        ([], "", True),
        ([], "qq", True),
        ([], "qqq", False),
        ([], "qdd", True),
        ([], "qddqq", False),
        ([], "qddddd", False),
        (["--rounds", "1"], "d", True),
        (["--rounds", "1"], "dd", False),
        (["--quick"], "d", False),
    ],
)
def test_a_disturbed_round_is_repeated_up_to_as_many_again(
    arguments: list[str], found: str, expected: bool
) -> None:
    """``found``: the rounds so far, quiet or disturbed."""
    disturbed = _round(1, _run(10.0), _run(20.0))
    rounds = [_quiet(1, 10.0, _run(10.0)) if each == "q" else disturbed for each in found]
    assert wants_another(rounds, plan_of(make_parser().parse_args(arguments))) is expected


def test_a_round_of_a_machine_that_was_not_quiet_is_in_no_figure_but_in_the_rows() -> None:
    noisy = _round(2, _run(10.0), _run(20.0), preemptive=_run(90.0))
    rounds = [_quiet(1, 10.0, _run(10.0)), noisy, _quiet(3, 10.0, _run(10.0))]
    rows = workload_rows("C", rounds)
    summaries = {row["side"]: row for row in rows if "stage" not in row}
    assert list(summaries) == ["RT-only", "preemptive"]
    assert (summaries["preemptive"]["mean_ms"], summaries["preemptive"]["quiet_rounds"]) == (
        10.0,
        2,
    )
    told = [(row["round"], row["side"], row["quiet"], row["mean_ms"]) for row in rows[2:]]
    assert told[3:6] == [
        (2, "RT-only before", False, 10.0),
        (2, "preemptive", False, 90.0),
        (2, "RT-only after", False, 20.0),
    ]
    assert len(told) == 9, "every run of every round"
    assert len(str(workload_rows("C", [noisy])[0][REASON])) <= 60, "a page shows no longer text"


def test_a_workload_of_one_quiet_round_has_no_figure_and_its_checks_say_why() -> None:
    noisy = _round(1, _run(10.0), _run(20.0), preemptive=_run(10.0), shared=_run(30.0))
    quiet = _round(2, _run(10.0), _run(10.0), preemptive=_run(10.0), shared=_run(30.0))
    report = _report(workload_rows("C", [noisy, quiet]))
    assert report.rows[0] == {
        "workload": "C",
        REASON: "no figure, machine not known to be quiet: 1 of 2 rounds",
    }
    add_checks(report)
    assert [(check.name, check.ok) for check in report.checks] == [
        ("C: real-time mean / RT-only", False),
        ("C: real-time p99 / RT-only", False),
        ("C: throughput / shared", False),
    ]
    assert {check.value for check in report.checks} == {report.rows[0][REASON]}


def test_a_side_that_drops_is_told_with_the_share_that_it_missed() -> None:
    dropping = _run(10.0, dropped=150, failed=50)
    row = summarise_side([_quiet(1, 10.0, dropping)], "preemptive")
    assert (row["dropped"], row["failed"], row["missed_percent"]) == (150, 50, 20.0)


def test_few_requests_have_no_p99_anywhere() -> None:
    rounds = [
        _round(1, _run(10.0, count=400), _run(10.0, count=400), preemptive=_run(9.0, count=998))
    ]
    row = summarise_side(rounds, "preemptive")
    assert row["p99_ms"] == "too few answers (998 of 1,000)"
    assert row["p99_ratio"] == "too few answers (800 of 1,000)"
    assert row["mean_ratio"] == pytest.approx(0.9)
    assert "p99_ms too few answers (499 of 1,000)" in describe(_run(1.0, count=499))


def test_sides_are_compared_round_by_round_where_both_answered() -> None:
    assert round_ratio([10.0, 7.0, 90.0], [5.0, 0.0, 30.0]) == pytest.approx(2.5)
    assert round_ratio([10.0], [0.0]) is None


def _row(workload: str, side: str, **values: Any) -> dict[str, Any]:
    return {
        "workload": workload,
        "side": side,
        "mean_ratio": 1.0,
        "p99_ratio": 1.0,
        "throughput_ratio": 3.0,
        "p90_ms": 8.0,
        "p99_ms": 10.0,
        "round_mean_ms": [8.0, 8.0, 8.0],
        "round_per_s": [100.0, 100.0, 50.0],
        "round_best_effort_per_s": [60.0, 60.0, 30.0],
        **values,
    }


def _checks(*rows: dict[str, Any]) -> dict[str, tuple[Any, bool]]:
    report = _report(list(rows))
    add_checks(report)
    return {check.name: (check.value, check.ok) for check in report.checks}


def test_checks_hold_and_fail_by_the_rows() -> None:
    confined = _row("C", "triton besteffort confined", p90_ms=20.0, p99_ms=31.0)
    found = _checks(
        _row("C", "preemptive", mean_ratio=1.03, p99_ratio=1.09),
        _row("C", "shared", round_per_s=[120.0, 90.0, 60.0]),
        {**confined, "round_per_s": [110.0, 110.0, 55.0]},
        _row("C", "triton one run", p90_ms=21.0, p99_ms=29.0, round_per_s=[50.0] * 3),
        _row("C", "triton free", stage="trial", p90_ms=1.0, p99_ms=1.0),
        _row("E", "preemptive", throughput_ratio=1.5),
        _row("B", "preemptive", mean_ratio=9.0),
        _row("B", "triton besteffort confined", p99_ms=11.0),
    )
    assert found == {
        "C: real-time mean / RT-only": (1.03, False),
        "C: real-time p99 / RT-only": (1.09, True),
        "C: throughput / shared": (0.833, False),
        "C: real-time p99 of Triton's best setting / ours": (2.9, False),
        "C: throughput / that of Triton's best setting": (2.0, True),
        "C: throughput / that of triton besteffort confined": (0.909, False),
        "E: real-time mean / RT-only": (1.0, True),
        "E: real-time p99 / RT-only": (1.0, True),
        "E: throughput / RT-only": (1.5, False),
        "B: real-time mean / RT-only": (9.0, False),
        "B: real-time p99 / RT-only": (1.0, True),
        "B: real-time p99 of Triton's best setting / ours": (1.1, True),
        "B: throughput / that of Triton's best setting": (1.0, True),
        "B: throughput / that of triton besteffort confined": (1.0, True),
    }


def test_checks_of_tails_fail_for_want_of_requests() -> None:
    found = _checks(
        _row("C", "preemptive", p99_ratio=FEW, p99_ms=FEW),
        _row("C", "triton one run", p90_ms=21.0, p99_ms=90.0),
    )
    assert {name: value for name, (value, ok) in found.items() if not ok} == {
        "C: real-time p99 / RT-only": FEW,
        "C: real-time p99 of Triton's best setting / ours": FEW,
    }
