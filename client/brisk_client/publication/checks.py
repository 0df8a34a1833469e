"""Checks of a published run: whether they hold, finding them by name, showing them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from brisk_client.publication.runs import PublishedRun, UnusableRunError
from brisk_client.report import COMPARISONS, Check

_BOUND = re.compile(r"(<=|>=|<|>|==) (-?[\d.]+(?:e-?\d+)?)")
_SHARE = re.compile(r"(\d+) of (\d+)")
_SHARES: dict[str, Callable[[int, int], bool]] = {
    "all": lambda count, whole: count == whole,
    "more than half": lambda count, whole: 2 * count > whole,
}
_REACHED = re.compile(r"an interval that reaches down to ([\d.]+)%")
_AT_LEAST = re.compile(r"at least (\d+)")


def holds(check: Check) -> bool:
    """What value and expectation alone say.

    A text where a number is expected, such as the reason why there is none, does not hold; where
    no rule reads the expectation, the value has to be just that.
    """
    value, expected = check.value, check.expected
    if not isinstance(expected, str):
        return bool(value == expected)
    if bound := _BOUND.match(expected):
        return _is_number(value) and COMPARISONS[bound[1]](float(value), float(bound[2]))
    if least := _AT_LEAST.match(expected):
        found = re.match(r"\d+", str(value))
        return found is not None and int(found[0]) >= int(least[1])
    if expected.isdigit():
        return bool(value == int(expected))
    if expected == "not falling":
        rising = [float(number) for number in str(value).split()[1::2]]
        return rising == sorted(rising)
    if isinstance(value, bool):
        return value
    if reached := _REACHED.fullmatch(expected):
        interval = re.search(r"interval (-?[\d.]+)% to", str(value))
        return interval is not None and float(interval[1]) <= float(reached[1])
    if (share := _SHARE.fullmatch(str(value))) and expected in _SHARES:
        return _SHARES[expected](int(share[1]), int(share[2]))
    return bool(value == expected)


def is_honest(check: Check) -> bool:
    """Whether ``ok`` is what value and expectation say.

    A value that was rounded to its very limit may have missed it.
    """
    bound = _BOUND.match(str(check.expected))
    at_limit = bound is not None and _is_number(check.value) and check.value == float(bound[2])
    return check.ok == holds(check) or (at_limit and not check.ok)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def worst_check(run: PublishedRun, pattern: str) -> Check:
    """The check whose whole name matches; of several the one nearest to missing its aim.

    Raises UnusableRunError where no check of the run matches.
    """
    found = [check for check in run.checks if re.fullmatch(pattern, check.name)]
    if not found:
        names = "; ".join(check.name for check in run.checks)
        raise UnusableRunError(f"{run.file}: no check is called '{pattern}' of: {names}")
    return max(found, key=_distress)


def _distress(check: Check) -> float:
    """How near a check is to missing its aim: one that misses it before all that do not."""
    bound = re.match(r"([<>])=? (-?[\d.]+)", str(check.expected))
    if bound is None or not isinstance(check.value, (int, float)):
        return float("-inf") if check.ok else float("inf")
    share = float(check.value) / (float(bound[2]) or 1.0)
    return (share if bound[1] == "<" else -share) + (0.0 if check.ok else 1e6)


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


def shown(check: Check) -> str:
    """The value, with as many digits as it takes to be seen on its side of the limit."""
    if not isinstance(check.value, float):
        return number(check.value)
    for digits in range(3, 8):
        text = number(check.value, digits)
        judged = Check(check.name, float(text), check.expected, check.ok)
        if check.expected is None or holds(judged) == check.ok:
            return text
    return number(check.value, 8)


def aim(check: Check) -> str:
    """The expectation as a reader reads it: ≤ and ≥; empty where there is none."""
    text = "" if check.expected is None else str(check.expected)
    return text.replace("<=", "≤").replace(">=", "≥")


def mark(check: Check) -> str:
    """✓ or ✗; nothing where nothing is expected."""
    return "" if check.expected is None else "✓" if check.ok else "✗"
