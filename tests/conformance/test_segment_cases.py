"""Every node case of the ONNX project that ONNX Runtime passes, segments pass, cut or not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from brisk.segments.model import cutting
from brisk.segments.prepared import trial
from brisk_bench.conformance import FIRST, FORMS, CaseOutcome, report_of, run_cases


@pytest.fixture(scope="module")
def outcomes(node_cases: list[Any], tmp_path_factory: pytest.TempPathFactory) -> list[CaseOutcome]:
    """What packing gains is not measured in earnest: answers are compared either way.

    Nor are its ten thousand files forced to the disk, which takes a sixth of the time.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trial, "MOST_RUNS", 1)
        patched.setattr(os, "fsync", lambda descriptor: None)
        return run_cases(node_cases, tmp_path_factory.mktemp("cases"))


def test_the_benchmark_finds_no_case_that_brisk_answers_otherwise(
    outcomes: list[CaseOutcome],
) -> None:
    report = report_of(outcomes)
    assert [check.name for check in report.checks if not check.ok] == [], report.notes
    counts = {row["group"]: row["cases"] for row in report.rows}
    assert counts["all cases"] > 1500
    assert counts["passed by Brisk in every form"] > 1300
    assert not any("/tmp" in note for note in report.notes), "of this machine"


def test_what_is_prepared_passes_as_what_was_opened_does(outcomes: list[CaseOutcome]) -> None:
    """Also where a reader of types that Triton lacks is all that a form could differ by."""
    unlike = {
        outcome.name: dict(outcome.failures)
        for outcome in outcomes
        if outcome.goes_over_wire and 0 < len(outcome.failures) < len(FORMS)
    }
    assert unlike == {}


def test_what_onnxruntime_passes_segments_pass_wherever_they_are_cut(
    node_cases: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node is no more than it was above."""
    monkeypatch.setattr(cutting, "LONGEST_SEGMENT_NS", 0)
    several = [case for case in node_cases if len(case.model.graph.node) > 1]
    outcomes = run_cases(several, tmp_path, (FIRST,))
    assert sum(outcome.segments > 1 for outcome in outcomes) > 100
    assert {
        outcome.name: dict(outcome.failures)
        for outcome in outcomes
        if outcome.is_worse and outcome.goes_over_wire and not outcome.is_random
    } == {}
