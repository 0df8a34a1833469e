"""What `brisk bench conformance` says of cases: whose failure each is."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from brisk_bench.conformance import CaseOutcome, compare, report_of


def _case(name: str = "test_add", **changed: Any) -> CaseOutcome:
    values: dict[str, Any] = {
        "goes_over_wire": True,
        "segments": 1,
        "refused": None,
        "peer_failure": None,
    }
    return CaseOutcome(name, **{**values, **changed})


def _counts(*cases: CaseOutcome) -> tuple[dict[str, int], list[tuple[int, bool]]]:
    report = report_of(cases)
    counts = {row["group"]: row["cases"] for row in report.rows}
    return counts, [(check.value, check.ok) for check in report.checks]


def test_what_onnx_runtime_does_not_run_is_no_failure_of_ours() -> None:
    why = "Fail: Unsupported model IR version: 14, max supported IR version: 13"
    counts, checks = _counts(
        _case(),
        _case("test_new", refused=why, failures={"first": why}),
        _case("test_none", refused="NotImplemented: ImageDecoder", failures={"first": "none"}),
    )
    assert counts["all cases"] == 3
    assert max(map(len, counts)) <= 60, "a published page shows no longer text"
    assert counts["passed by Brisk in every form"] == 1
    assert counts["no answer of ONNX Runtime itself"] == 2
    assert counts["of these since the model is of a newer ONNX than it reads"] == 1
    assert checks == [(0, True), (0, True)]


def test_a_form_that_misses_what_onnx_runtime_passes_is_a_failure_with_its_reason() -> None:
    broken = _case("test_pad", failures={"prepared": "boom"}, differences={"prepared": "boom"})
    counts, checks = _counts(_case(), broken)
    assert counts["passed in the first form"] == 2
    assert counts["passed in the prepared form"] == 1
    assert checks == [(1, False), (1, False)]
    notes = report_of([broken]).notes
    assert "fails: test_pad: prepared: boom" in notes


def test_an_answer_other_than_onnx_runtime_s_is_a_failure_though_both_are_wrong() -> None:
    expected = dict.fromkeys(("first", "warm"), "differs by up to 8")
    alike = _case("test_unpool", peer_failure="differs by up to 8", failures=expected)
    assert _counts(alike)[1] == [(0, True), (0, True)]
    unlike = _case(
        "test_unpool", peer_failure="differs", failures=expected, differences={"warm": "by 3"}
    )
    assert _counts(unlike)[1] == [(0, True), (1, False)]


def test_what_triton_has_no_datatype_of_is_counted_by_itself() -> None:
    sequence = _case(
        "test_sequence", goes_over_wire=False, failures={"first": "x"}, differences={"first": "x"}
    )
    counts, checks = _counts(sequence)
    assert counts["of these with a type that Triton has not"] == 1
    assert checks == [(0, True), (0, True)]


@pytest.mark.parametrize(
    ("actual", "expected", "why"),
    [
        (np.float32([1.0]), np.float32([1.0005]), None),
        (np.float32([1.0]), np.float32([1.1]), "differs by up to 0.1"),
        (np.float32([1.0]), np.float32([[1.0]]), "shape .1,. is not .1, 1."),
        (np.int32([1]), np.int64([1]), "dtype int32 is not int64"),
        ([np.float32([1.0])], [np.float32([1.0])] * 2, "is no sequence of 2"),
    ],
)
def test_outputs_are_compared_within_the_tolerance_of_the_case(
    actual: Any, expected: Any, why: str | None
) -> None:
    found = compare(actual, expected, 1e-3, 1e-7)
    assert (found is None) is (why is None)
    assert re.search(why or "", found or "")
