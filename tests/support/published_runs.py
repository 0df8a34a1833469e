"""Published runs of tests; whether checks of any run are what values and expectations say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from brisk_bench.harness.report import COMPARISONS, Check
from publication.checks import BOUND, worst_check
from publication.readme import README_ROWS
from publication.runs import PublishedRun, read_run

_SHARE = re.compile(r"(\d+) of (\d+)")
_SHARES: dict[str, Callable[[int, int], bool]] = {
    "all": lambda count, whole: count == whole,
    "more than half": lambda count, whole: 2 * count > whole,
}


def holds(check: Check) -> bool:
    """Whether the check holds by its value and expectation alone.

    A text where a number is expected, such as the reason why there is none, does not hold; where
    no rule reads the expectation, the value has to be just that.
    """
    value, expected = check.value, check.expected
    if not isinstance(expected, str):
        return bool(value == expected)
    if bound := BOUND.match(expected):
        return _is_number(value) and COMPARISONS[bound[1]](float(value), float(bound[2]))
    if expected.isdigit():
        return bool(value == int(expected))
    if expected == "not falling":
        rising = [float(number) for number in str(value).split()[1::2]]
        return rising == sorted(rising)
    if isinstance(value, bool):
        return value
    if (share := _SHARE.fullmatch(str(value))) and expected in _SHARES:
        return _SHARES[expected](int(share[1]), int(share[2]))
    return bool(value == expected)


def readme_shows(file: str, checks: Sequence[Check]) -> list[Check]:
    """Return what the rows of the README show of a run with these ``checks`` in ``file``.

    Raises UnusableRunError where a row finds nothing.
    """
    run = PublishedRun("a benchmark", {}, {}, [], list(checks), file=file)
    return [worst_check([run], row.check) for row in README_ROWS if fnmatchcase(file, row.file)]


def is_honest(check: Check) -> bool:
    """Whether the check's ``ok`` is what its value and expectation say.

    A value that was rounded to its very limit may have missed it.
    """
    bound = BOUND.match(str(check.expected))
    at_limit = bound is not None and _is_number(check.value) and check.value == float(bound[2])
    return check.ok == holds(check) or (at_limit and not check.ok)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def report(**changed: Any) -> dict[str, Any]:
    """Return a published report, whole but for what is changed."""
    return {
        "name": "hop",
        "command": "brisk bench hop",
        "date": "2026-01-01T00:00:00Z",
        "commit": "a" * 40,
        "dirty": False,
        "machine": {"processor": "one", "cores": 2},
        "versions": {"python": "3.11"},
        "rows": [{"part": "hop", "p50_us": 98.76543}],
        "checks": [{"name": "p50, ms", "value": 0.09876, "expected": "<= 0.15", "ok": True}],
        "notes": ["a note"],
        **changed,
    }


def run_of(folder: Path, name: str = "hop", **changed: Any) -> PublishedRun:
    file = folder / f"{name}.json"
    file.write_text(json.dumps(report(**changed)))
    return read_run(file)
