"""`brisk bench conformance`: ONNX's node tests on the torch engine: how many pass, and on what.

They are the ONNX project's own, run through the program and its torch solutions.
"""

from __future__ import annotations

import fnmatch
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from brisk.errors import BriskError
from brisk.execution.frame import run_serially
from brisk.execution.loading import load_program
from brisk.graph.reader import build_program
from brisk.solutions.catalogue import Catalogue, default_catalogue
from brisk.solutions.values import from_numpy, to_numpy
from brisk_client.benchmarks.harness.command_line import bars, benchmark_parser, run_command
from brisk_client.benchmarks.harness.machine import new_report
from brisk_client.report import Check, Report, check_limit

EXPECTED_SHARE = 0.97
"""Of all cases, excluded ones counted as failed."""

QUICK_STRIDE = 10
"""A quick run takes every tenth case."""


EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Spacing of numbers near 1, by dtype.

The cases expect what numpy gives that rounds after every step; who rounds once differs by this.
"""


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """What one case gave: no failure where it passed; the solutions of its layers, in order."""

    name: str
    failure: str | None
    solutions: tuple[str, ...]
    outputs: tuple[Any, ...]

    @property
    def passed(self) -> bool:
        return self.failure is None

    @property
    def is_tuned(self) -> bool:
        """Whether any layer ran on something else than the reference solution."""
        return any(name != "reference" for name in self.solutions)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Cases, by a shell pattern of their names, that cannot pass, and why.

    ``by_chance``: one may pass now and then, which says nothing.
    """

    pattern: str
    reason: str
    by_chance: bool = False

    def covers(self, name: str) -> bool:
        return fnmatch.fnmatchcase(name, self.pattern)


EXCLUSIONS: tuple[Exclusion, ...] = (
    Exclusion("test_bernoulli*", "random numbers, of no defined generator", by_chance=True),
)


def exclusion_of(name: str) -> Exclusion | None:
    return next((exclusion for exclusion in EXCLUSIONS if exclusion.covers(name)), None)


def passing_exclusions(outcomes: Iterable[CaseOutcome]) -> list[str]:
    """Excluded cases that pass all the same, other than by chance: their exclusion is wrong."""
    return [
        outcome.name
        for outcome in outcomes
        if outcome.passed and (found := exclusion_of(outcome.name)) and not found.by_chance
    ]


def run(quick: bool) -> Report:
    """Run the node cases, a tenth of them where ``quick``, on the CPU."""
    cases = collect_cases()[:: QUICK_STRIDE if quick else 1]
    device = torch.device("cpu")
    outcomes = [run_case(case, default_catalogue(), device) for case in cases]
    return summarise(outcomes)


def main(arguments: Sequence[str]) -> int:
    parser = benchmark_parser("conformance", __doc__, "a tenth of the cases")
    return run_command(parser, arguments, run, bars("cases", "kind", "group"))


def summarise(outcomes: Sequence[CaseOutcome]) -> Report:
    """The report of ``outcomes``: one row for each group, checks, and every exclusion."""
    passed = [outcome for outcome in outcomes if outcome.passed]
    excluded = [outcome for outcome in outcomes if exclusion_of(outcome.name) is not None]
    failed = [outcome for outcome in outcomes if not outcome.passed and outcome not in excluded]
    unexpected = passing_exclusions(outcomes)
    by_reference = [outcome for outcome in passed if not outcome.is_tuned]
    counts = {
        "all cases": len(outcomes),
        "passed": len(passed),
        "passed on the reference solution alone": len(by_reference),
        "excluded": len(excluded),
        "failed": len(failed),
    }
    exclusions = Counter(exclusion_of(outcome.name) for outcome in excluded)
    words = Counter(each.name.removeprefix("test_").split("_")[0] for each in by_reference)
    operators = ", ".join(f"{word} {count}" for word, count in words.most_common())
    notes = [
        *(f"failed: {outcome.name}: {outcome.failure}" for outcome in failed),
        *(f"passes although excluded: {name}" for name in unexpected),
        *(
            f"excluded: {exclusion.pattern} ({count} cases): {exclusion.reason}"
            for exclusion, count in exclusions.items()
            if exclusion is not None
        ),
        f"on the reference solution alone, by operator: {operators}",
    ]
    report = new_report("conformance", ("onnx", "torch", "numpy"), notes)
    report.rows += [
        {"kind": "node cases", "group": group, "cases": count} for group, count in counts.items()
    ]
    share = len(passed) / max(len(outcomes), 1)
    report.checks += [
        check_limit("share passed", share, ">=", EXPECTED_SHARE, 4),
        Check("cases failed", len(failed), "0", not failed),
        Check("exclusions that pass", len(unexpected), "0", not unexpected),
    ]
    return report


def collect_cases() -> list[Any]:
    """All node cases of the installed onnx, in its order; takes seconds."""
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, from making the expected values
        return list(node.collect_testcases(None))


def run_case(
    case: Any, catalogue: Catalogue, device: torch.device, *, optimised: bool = True
) -> CaseOutcome:
    """Load the case's model and compare every output of every data set; never raises."""
    solutions: tuple[str, ...] = ()
    outputs: list[Any] = []
    try:
        program = build_program(case.model, name=case.name, optimised=optimised)
        loaded = load_program(program, device, catalogue)
        solutions = tuple(layer.solution.name for layer in loaded.layers)
        for given, expected in case.data_sets:
            names = [value.name for value in case.model.graph.input]
            inputs = {
                name: from_numpy(as_array(value), device)
                for name, value in zip(names, given, strict=False)
            }
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # numpy's, from the reference: overflow, log of 0
                results = run_serially(loaded, inputs)
            made = [to_numpy(results[value.name]) for value in case.model.graph.output]
            outputs.extend(made)
            for value, actual, wanted in zip(case.model.graph.output, made, expected, strict=True):
                difference = compare(actual, as_array(wanted), case.rtol, case.atol)
                if difference is not None:
                    failure = f"output '{value.name}': {difference}"
                    return CaseOutcome(case.name, failure, solutions, tuple(outputs))
    except BriskError as error:
        return CaseOutcome(case.name, f"{type(error).__name__}: {error}", solutions, ())
    return CaseOutcome(case.name, None, solutions, tuple(outputs))


def as_array(value: Any) -> Any:
    """A case's datum as numpy has it: tensors decoded, sequences as lists."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, (list, tuple)):
        return [as_array(item) for item in value]
    return value


def compare(actual: Any, expected: Any, rtol: float, atol: float) -> str | None:
    """Why ``actual`` is not ``expected``, in words; None where it is, within the tolerance."""
    if expected is None or isinstance(expected, dict):
        return None if actual == expected else f"{actual!r} is not {expected!r}"
    if isinstance(expected, list):
        if not isinstance(actual, list) or len(actual) != len(expected):
            return f"{actual!r} is no sequence of {len(expected)}"
        for place, (mine, wanted) in enumerate(zip(actual, expected, strict=True)):
            if (difference := compare(mine, wanted, rtol, atol)) is not None:
                return f"element {place}: {difference}"
        return None
    if not isinstance(actual, (np.ndarray, np.generic)):
        return f"{type(actual).__name__} is no array"
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        return f"shape {actual.shape} is not {expected.shape}"
    if expected.dtype.kind in "OUS":
        return None if (actual == expected).all() else "the strings differ"
    if actual.dtype != expected.dtype:
        return f"dtype {actual.dtype} is not {expected.dtype}"
    epsilon = EPSILON.get(expected.dtype.name, 0.0)
    if expected.dtype.kind != "c":
        actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    rtol, atol = max(rtol, epsilon), max(atol, epsilon)
    if np.allclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True):
        return None
    with np.errstate(invalid="ignore"):
        furthest = np.nanmax(np.abs(actual - expected))
    return f"differs by up to {furthest:.3g} (rtol {rtol:.1g}, atol {atol:.1g})"
