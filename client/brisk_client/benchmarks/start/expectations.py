"""What is expected of starts, as checks on a report's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brisk_client.benchmarks.start.entries import Configuration
from brisk_client.benchmarks.start.sides import FIRST, PREPARED
from brisk_client.report import Check

Rows = Sequence[Mapping[str, Any]]

LIMIT = 1.0
"""Brisk's time from ``exec`` over that of whichever peer answers soonest, at most."""


def all_checks(rows: Rows) -> list[Check]:
    """Every expectation that the rows suffice for."""
    return [*_right(rows), *_against_peers(rows)]


def soonest(rows: Rows, model: str, *, prepared: bool) -> Mapping[str, Any] | None:
    """The complete entry of a peer, prepared or not, whose first answer comes first."""
    found = [
        row
        for row in rows
        if row["model"] == model
        and "first_ms" in row
        and row["entry"] == Configuration.COMPLETE.value
        and row["engine"] not in (FIRST, PREPARED)
        and ("prepared" in row["engine"]) == prepared
    ]
    return min(found, key=lambda row: float(row["first_ms"]), default=None)


def _right(rows: Rows) -> list[Check]:
    checks = []
    for row in rows:
        named = f"{row['model']}: {row['engine']}, {row['entry']}"
        if "reason" in row:
            if row["engine"] in (FIRST, PREPARED):
                checks.append(Check(f"{named}: answers", row["reason"], "an answer", False))
            continue
        found = f"{row['right']} of {row['samples']}"
        checks.append(
            Check(f"{named}: right answers", found, "all", row["right"] == row["samples"])
        )
    return checks


def _against_peers(rows: Rows) -> list[Check]:
    checks = []
    for model in dict.fromkeys(row["model"] for row in rows):
        for engine, prepared in ((FIRST, False), (PREPARED, True)):
            peer = soonest(rows, model, prepared=prepared)
            ours = [
                row
                for row in rows
                if (row["model"], row["engine"]) == (model, engine)
                and row["entry"] == Configuration.COMPLETE.value
                and "first_ms" in row
            ]
            if peer is None or not ours:
                continue
            ratio = round(ours[0]["first_ms"] / peer["first_ms"], 3)
            text = f"{model}: {engine} over {peer['engine']}, exec to first answer"
            checks.append(Check(text, ratio, f"<= {LIMIT}", ratio <= LIMIT))
    return checks
