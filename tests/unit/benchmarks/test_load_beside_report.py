"""What `brisk bench load_beside` makes of its latencies."""

from __future__ import annotations

import pytest

from brisk_client.benchmarks.load_beside import Windows, add_results
from brisk_client.benchmarks.sampling import percentile
from brisk_client.report import Report


def _report(alone_s: list[float], beside_s: list[float], loads_s: list[float]) -> Report:
    report = Report("load_beside", {}, {}, [], [])
    half = len(beside_s) // 2
    beside = Windows([beside_s[:half], beside_s[half:]], loads_s)
    add_results(report, {"nothing": Windows([alone_s]), "loads": beside})
    return report


def test_a_percentile_lies_between_its_neighbours() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == pytest.approx(2.5)
    assert percentile([4.0, 1.0, 3.0, 2.0], 1.0) == pytest.approx(4.0)
    assert percentile([7.0], 0.99) == pytest.approx(7.0)


def test_the_check_compares_99th_percentiles_over_all_windows() -> None:
    alone = [0.020] * 200
    beside = [0.020] * 190 + [0.040] * 10
    report = _report(alone, beside, [0.3])
    check = report.checks[0]
    assert check.value == pytest.approx(2.0)
    assert not check.ok
    assert [row["requests"] for row in report.rows] == [200, 200]


def test_equal_latencies_pass_only_where_something_was_loaded() -> None:
    assert _report([0.02] * 9, [0.02] * 9, [0.3, 0.4, 0.5]).ok
    assert not _report([0.02] * 9, [0.02] * 9, []).ok


def test_the_median_load_is_shown_beside_the_requests_it_disturbed() -> None:
    report = _report([0.02] * 4, [0.02] * 4, [0.3, 0.9, 0.4])
    assert report.rows[1]["load_ms"] == pytest.approx(400.0)
    assert "load_ms" not in report.rows[0]
