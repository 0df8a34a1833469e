"""Single figures of a published run: finding them by name, showing them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from brisk_client.publication.judging import holds
from brisk_client.publication.runs import PublishedCheck, PublishedRun, UnusableRunError

_ORDERS: dict[str, Callable[[float], float]] = {
    "<": lambda share: share,
    ">": lambda share: -share,
}


def worst_check(run: PublishedRun, pattern: str) -> PublishedCheck:
    """The check whose whole name matches; of several the one nearest to missing its aim.

    Raises UnusableRunError where no check of the run matches.
    """
    found = [check for check in run.checks if re.fullmatch(pattern, check.name)]
    if not found:
        names = "; ".join(check.name for check in run.checks)
        raise UnusableRunError(f"{run.file}: no check is called '{pattern}' of: {names}")
    return max(found, key=_distress)


def number(value: Any, digits: int = 3) -> str:
    """As it is shown: integers whole, others with ``digits`` significant digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return str(value)
    if value and abs(value) >= 10**digits:
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


def shown(check: PublishedCheck) -> str:
    """The value, with as many digits as it takes to be seen on its side of the limit."""
    if not isinstance(check.value, float):
        return number(check.value)
    for digits in range(3, 8):
        text = number(check.value, digits)
        judged = PublishedCheck(check.name, float(text), check.expected, check.ok)
        if check.expected is None or holds(judged) == check.ok:
            return text
    return number(check.value, 8)


def aim(check: PublishedCheck) -> str:
    """The expectation as a reader reads it: ≤ and ≥; empty where there is none."""
    text = "" if check.expected is None else str(check.expected)
    return text.replace("<=", "≤").replace(">=", "≥")


def mark(check: PublishedCheck) -> str:
    """✓ or ✗; nothing where nothing is expected."""
    return "" if check.expected is None else "✓" if check.ok else "✗"


def _distress(check: PublishedCheck) -> float:
    """How near a check is to missing its aim: one that misses it before all that do not."""
    limit = re.match(r"([<>])=? (-?[\d.]+)", str(check.expected))
    if limit is None or not isinstance(check.value, (int, float)):
        return float("-inf") if check.ok else float("inf")
    share = float(check.value) / (float(limit[2]) or 1.0)
    return _ORDERS[limit[1]](share) + (0.0 if check.ok else 1e6)
