"""What a benchmark found: rows to show, checks to pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Check:
    """One expectation: the value found, what was expected, and whether it holds."""

    name: str
    value: Any
    expected: Any
    ok: bool


@dataclass
class Report:
    """The result of one benchmark on one machine."""

    name: str
    machine: dict[str, Any]
    versions: dict[str, str]
    rows: list[dict[str, Any]]
    checks: list[Check]
    notes: list[str]
