"""`brisk bench conformance`: ONNX's node tests on the torch engine: how many pass, and on what."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from brisk.solutions.catalogue import default_catalogue
from brisk_client.benchmarks.conformance.onnx_cases import CaseOutcome, collect_cases, run_case
from brisk_client.benchmarks.harness.command_line import benchmark_parser, deliver
from brisk_client.benchmarks.harness.machine import new_report
from brisk_client.report import Check, Report, plot_bars

EXPECTED_SHARE = 0.97
"""Of all cases, excluded ones counted as failed."""

QUICK_STRIDE = 10
"""A quick run takes every tenth case."""


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
    """The command line; the exit status is 0 where every check holds."""
    chosen = benchmark_parser("conformance", __doc__, "a tenth of the cases").parse_args(arguments)
    report = run(chosen.quick)
    return deliver(
        report, chosen, lambda folder: plot_bars(report, folder, "cases", "kind", "group")
    )


def summarise(outcomes: Sequence[CaseOutcome]) -> Report:
    """The report of ``outcomes``: one row for each group, checks, and every exclusion."""
    passed = [outcome for outcome in outcomes if outcome.passed]
    excluded = [outcome for outcome in outcomes if exclusion_of(outcome.name) is not None]
    failed = [outcome for outcome in outcomes if not outcome.passed and outcome not in excluded]
    unexpected = passing_exclusions(outcomes)
    by_reference = [outcome for outcome in passed if not outcome.is_tuned]
    share = len(passed) / max(len(outcomes), 1)
    counts = {
        "all cases": len(outcomes),
        "passed": len(passed),
        "passed on the reference solution alone": len(by_reference),
        "excluded": len(excluded),
        "failed": len(failed),
    }
    checks = [
        Check("share passed", round(share, 4), f">= {EXPECTED_SHARE}", share >= EXPECTED_SHARE),
        Check("cases failed", len(failed), "0", not failed),
        Check("exclusions that pass", len(unexpected), "0", not unexpected),
    ]
    notes = [
        *(f"failed: {outcome.name}: {outcome.failure}" for outcome in failed),
        *(f"passes although excluded: {name}" for name in unexpected),
        *_exclusion_notes(excluded),
        f"on the reference solution alone, by operator: {_operators(by_reference)}",
    ]
    report = new_report("conformance", ("onnx", "torch", "numpy"), notes)
    report.rows += [
        {"kind": "node cases", "group": group, "cases": count} for group, count in counts.items()
    ]
    report.checks += checks
    return report


def _exclusion_notes(excluded: Iterable[CaseOutcome]) -> list[str]:
    counts = Counter(exclusion_of(outcome.name) for outcome in excluded)
    return [
        f"excluded: {exclusion.pattern} ({count} cases): {exclusion.reason}"
        for exclusion, count in counts.items()
        if exclusion is not None
    ]


def _operators(outcomes: Iterable[CaseOutcome]) -> str:
    """Case names without their variants, most frequent first: ``cast 98, attention 93 …``."""
    words = (outcome.name.removeprefix("test_").split("_")[0] for outcome in outcomes)
    return ", ".join(f"{word} {count}" for word, count in Counter(words).most_common())
