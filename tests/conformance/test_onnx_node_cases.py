"""ONNX's own node cases on the torch engine: the default catalogue, and the reference solution."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from brisk.solutions.catalogue import default_catalogue
from brisk_client.benchmarks.conformance import compare
from support.torch_cases import (
    EXCLUSIONS,
    EXPECTED_SHARE,
    CaseOutcome,
    Exclusion,
    exclusion_of,
    passing_exclusions,
    run_case,
)

CPU = torch.device("cpu")

ORACLE_EXCEPTIONS = (
    Exclusion("test_if_opt", "onnx.reference wraps the optional sequence in one more list"),
    Exclusion("test_range_*_expanded", "onnx.reference's Loop keeps an axis of size 1"),
    Exclusion("test_scan_sum", "onnx.reference runs Scan-8, which has a batch axis, as Scan-9"),
)
"""Cases where the reference solution is wrong, and why."""


@pytest.fixture(scope="module")
def cases(node_cases: list[Any]) -> dict[str, object]:
    return {case.name: case for case in node_cases}


@pytest.fixture(scope="module")
def outcomes(cases: dict[str, object]) -> dict[str, CaseOutcome]:
    return {name: run_case(case, default_catalogue(), CPU) for name, case in cases.items()}


def test_every_case_that_is_not_excluded_passes(outcomes: dict[str, CaseOutcome]) -> None:
    failures = {
        name: outcome.failure
        for name, outcome in outcomes.items()
        if not outcome.passed and exclusion_of(name) is None
    }
    assert failures == {}


def test_every_excluded_case_fails(outcomes: dict[str, CaseOutcome]) -> None:
    assert passing_exclusions(outcomes.values()) == []


def test_every_exclusion_covers_a_case(outcomes: dict[str, CaseOutcome]) -> None:
    idle = [rule.pattern for rule in EXCLUSIONS if not any(map(rule.covers, outcomes))]
    assert idle == []


def test_at_least_97_percent_of_all_cases_pass(outcomes: dict[str, CaseOutcome]) -> None:
    assert len(outcomes) > 1500
    assert sum(outcome.passed for outcome in outcomes.values()) / len(outcomes) >= EXPECTED_SHARE


def test_tuned_solutions_agree_with_the_reference_solution(
    cases: dict[str, object], outcomes: dict[str, CaseOutcome]
) -> None:
    """Wherever a case passed with a tuned solution, the oracle gives the same within 1e-3."""
    differences: dict[str, str] = {}
    for name, outcome in outcomes.items():
        if outcome.passed and outcome.is_tuned:
            oracle = run_case(cases[name], {}, CPU, optimised=False)
            difference = compare(list(outcome.outputs), list(oracle.outputs), 1e-3, 1e-6)
            if difference is not None:
                differences[name] = oracle.failure or difference
    excused = {name for name in differences if any(e.covers(name) for e in ORACLE_EXCEPTIONS)}
    assert {name: differences[name] for name in differences.keys() - excused} == {}
    idle = [e.pattern for e in ORACLE_EXCEPTIONS if not any(map(e.covers, excused))]
    assert idle == []
