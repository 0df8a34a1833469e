"""What `brisk bench load_beside` makes of its latencies."""

from __future__ import annotations

import pytest

from brisk_bench.harness.report import Report
from brisk_bench.load_beside import Windows, add_results


def _report(alone_s: list[float], beside_s: list[float], loads_s: list[float]) -> Report:
    report = Report("load_beside", {}, {}, [], [])
    add_results(report, {"nothing": Windows(alone_s), "loads": Windows(beside_s, loads_s)})
    return report


def test_the_check_compares_99th_percentiles_over_all_windows() -> None:
    alone = [0.020] * 1000
    beside = [0.020] * 950 + [0.040] * 50
    report = _report(alone, beside, [0.3])
    check = report.checks[0]
    assert check.value == pytest.approx(2.0)
    assert not check.ok
    assert [row["requests"] for row in report.rows] == [1000, 1000]


def test_equal_latencies_pass_only_where_something_was_loaded() -> None:
    assert _report([0.02] * 1000, [0.02] * 1000, [0.3, 0.4, 0.5]).ok
    assert not _report([0.02] * 1000, [0.02] * 1000, []).ok


def test_windows_with_too_few_requests_pass_nothing() -> None:
    report = _report([0.02] * 999, [0.02] * 1000, [0.3])
    assert not report.checks[0].ok
    assert report.checks[0].value == "too few answers (999 of 1,000)"
    assert report.rows[0]["p99_ms"] == "too few answers (999 of 1,000)"


def test_the_median_load_is_shown_beside_the_requests_it_disturbed() -> None:
    report = _report([0.02] * 4, [0.02] * 4, [0.3, 0.9, 0.4])
    assert report.rows[1]["load_ms"] == pytest.approx(400.0)
    assert "load_ms" not in report.rows[0]
