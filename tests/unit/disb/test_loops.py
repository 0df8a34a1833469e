"""Networks in closed loops, through real runtimes."""

from __future__ import annotations

import pytest

from brisk_client.disb import loops
from brisk_client.disb.networks import Network, build_bert, build_densenet
from brisk_client.report import Report


def test_both_numbers_of_runs_are_measured_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {
        "a": Network("a", 1, 1.0, lambda: build_densenet(8, (1, 1, 1, 1))),
        "b": Network("b", 1, 1.0, lambda: build_bert(96, 3, 48)),
    }
    monkeypatch.setattr(loops, "NETWORKS", small)
    monkeypatch.setattr(loops, "SETTLING_RUNS", 2)
    report = Report("preempt", {}, {}, [], [], [])
    loops.measure_loops(report, list(small), rounds=2, seconds=0.3, threads=2)
    assert [row["concurrent_runs"] for row in report.rows] == [1, 2]
    for row in report.rows:
        assert len(row["round_per_s"]) == 2
        assert all(pace > 0 for pace in row["round_per_s"])
        assert row["p50_ms"] > 0
        few = isinstance(row["p99_ms"], str)
        assert few or row["p99_ms"] >= row["p50_ms"]
    assert report.rows[0]["pace_ratio"] == 1.0
