"""Checks of a published run: finding them by name, showing them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from brisk_bench.harness.report import COMPARISONS, Check
from publication.runs import PublishedRun, UnusableRunError

BOUND = re.compile(r"(<=|>=|<|>|==) (-?[\d.]+(?:e-?\d+)?)")
"""The form of an expectation that a number meets or does not meet."""


def worst_check(runs: Iterable[PublishedRun], pattern: str) -> Check:
    """Return the check whose whole name matches; of several the one nearest to missing its aim.

    Raises UnusableRunError if no check of one of the runs matches.
    """
    return max(_matching(runs, pattern), key=_distress)


def worst_shown(runs: Iterable[PublishedRun], pattern: str) -> str:
    """Return the value of ``worst_check`` as it is shown. Where runs have no figure, it is the
    worst figure of the others, with the number of those that have none.

    Raises as ``worst_check`` does.
    """
    matching = _matching(runs, pattern)
    figures = [check for check in matching if not _lacks_figure(check)]
    text = shown(max(figures or matching, key=_distress))
    lacking = len(matching) - len(figures)
    if not (figures and lacking):
        return text
    return f"{text}, and {lacking} of {len(matching)} without a figure"


def _matching(runs: Iterable[PublishedRun], pattern: str) -> list[Check]:
    matching: list[Check] = []
    for run in runs:
        found = [check for check in run.checks if re.fullmatch(pattern, check.name)]
        if not found:
            names = "; ".join(check.name for check in run.checks)
            raise UnusableRunError(f"{run.file}: no check is called '{pattern}' of: {names}")
        matching += found
    return matching


def _lacks_figure(check: Check) -> bool:
    """Whether a text, a reason, stands where a number is expected."""
    return isinstance(check.value, str) and BOUND.match(str(check.expected)) is not None


def _distress(check: Check) -> float:
    """Return how near a check is to missing its aim; those that miss it rank before others."""
    bound = BOUND.match(str(check.expected))
    if bound is None or bound[1] == "==" or not isinstance(check.value, (int, float)):
        return float("-inf") if check.ok else float("inf")
    share = float(check.value) / (float(bound[2]) or 1.0)
    return (share if bound[1][0] == "<" else -share) + (0.0 if check.ok else 1e6)


def number(value: Any, digits: int = 3) -> str:
    """Return a value as it is shown: integers whole, others with ``digits`` significant digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return str(value)
    if value and abs(value) >= 10**digits:
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


def shown(check: Check) -> str:
    """Return the value, with as many digits as it takes to be seen on its side of the limit.

    One that was rounded to the very limit, and has missed it, is said to be beyond it.
    """
    bound = BOUND.match(str(check.expected))
    if bound is None or not isinstance(check.value, float):
        return number(check.value)
    texts = [number(check.value, digits) for digits in range(3, 9)]
    compare, limit = COMPARISONS[bound[1]], float(bound[2])
    beyond = f"{'more' if bound[1][0] == '<' else 'less'} than {texts[0]}"
    return next((text for text in texts if compare(float(text), limit) == check.ok), beyond)


def aim(check: Check) -> str:
    """Return the expectation as it is shown, with ≤ and ≥; empty if there is none."""
    text = "" if check.expected is None else str(check.expected)
    return text.replace("<=", "≤").replace(">=", "≥")


def mark(check: Check, flaws: str = "") -> str:
    """Return ✗ for a missed aim, else ✓, or the run's flaws; empty if nothing is expected."""
    if check.expected is None:
        return ""
    return (flaws or "✓") if check.ok else "✗"
