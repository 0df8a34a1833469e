"""`brisk bench entries`: a real server whose entries come and go, and what its report says."""

from __future__ import annotations

import numpy as np
import pytest

from brisk.segments.onnxruntime import onnxruntime
from brisk_bench import entries
from brisk_bench.entries import FEATURES, network

pytestmark = [pytest.mark.timing, pytest.mark.beside]


def test_each_entry_has_a_network_of_its_own_that_numpy_computes_alike() -> None:
    x = np.random.default_rng(0).standard_normal((3, FEATURES)).astype(np.float32)
    answers = []
    for number in (0, 1, 24):
        model, reference = network(number)
        (computed,) = onnxruntime().InferenceSession(model.SerializeToString()).run(None, {"x": x})
        np.testing.assert_allclose(computed, reference(x), rtol=1e-4, atol=1e-4)
        answers.append(computed)
    assert not np.allclose(answers[0], answers[2])  # of one structure


def test_every_answer_is_right_and_artefacts_stay_within_their_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit is that of one or two forms. Whether it is reached is a matter of idle processors,
    and no part of this test."""
    monkeypatch.setattr(entries, "LIMIT_MIB", 1)
    report = entries.run(entries=30)
    judged = {(check.name, check.expected): (check.value, check.ok) for check in report.checks}
    asked = judged["wrong or missing answers, loads that failed", "<= 0"]
    assert asked == (0, True), report.notes
    assert judged["the artefacts' disk over its limit", "<= 1"][1]
    assert [row["entries"] for row in report.rows] == list(range(3, 31, 3))
    assert all(row["mib"] > row["stub_mib"] > 0 for row in report.rows)


def test_a_wrong_answer_is_a_fault_that_the_report_names(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = network(0)
    monkeypatch.setattr(entries, "KEPT", 1)
    monkeypatch.setattr(entries, "network", lambda number: (model, lambda x: x[:, :10]))
    report = entries.run(entries=2)
    assert report.checks[0].value >= 2
    assert not report.ok
    assert "entry_0: a wrong answer" in report.notes


def test_entries_that_all_fail_to_load_are_faults_in_a_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, reference = network(0)
    model.graph.node[0].op_type = "NoOperator"
    monkeypatch.setattr(entries, "KEPT", 1)
    monkeypatch.setattr(entries, "network", lambda number: (model, reference))
    report = entries.run(entries=3)
    assert [row["load_ms"] for row in report.rows] == [None] * 3
    growth = {check.name: check.value for check in report.checks if "load time" in check.name}
    assert [*growth.values()] == ["nothing was measured"]
    assert report.checks[0].value >= 3
    assert not report.ok
