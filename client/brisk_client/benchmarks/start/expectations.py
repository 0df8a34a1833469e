"""What is expected of starts, as checks on a report's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brisk_client.benchmarks.harness.peer_backends import ONNXRUNTIME
from brisk_client.benchmarks.start.sides import FIRST, PREPARED, PYTHON, Configuration
from brisk_client.report import Check

Rows = Sequence[Mapping[str, Any]]

CPP = f"{ONNXRUNTIME} backend"
"""Triton's own, in C++."""

STAND_IN = 0.9
"""Of the Python backend's time with ONNX Runtime: Triton's own, where it is not there."""

FIRST_LIMIT, PREPARED_LIMIT = 1.3, 1.0
"""Brisk's time from ``exec`` over that of Triton's own backend, without and with an artefact."""

PYTHON_LIMIT = 0.7
"""With one over that of the Python backend with ONNX Runtime."""

PEER_LIMIT = 1.0
"""With one over that of whichever peer answers soonest from what it has prepared itself."""


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
        times = {
            row["engine"]: float(row["first_ms"])
            for row in rows
            if row["model"] == model
            and row["entry"] == Configuration.COMPLETE.value
            and "first_ms" in row
        }
        limits = [(PREPARED, PYTHON, times.get(PYTHON), PYTHON_LIMIT)]
        named, own_ms = CPP, times.get(CPP)
        if own_ms is None and PYTHON in times:
            named, own_ms = f"{STAND_IN} x {PYTHON}", STAND_IN * times[PYTHON]
        limits += [(FIRST, named, own_ms, FIRST_LIMIT), (PREPARED, named, own_ms, PREPARED_LIMIT)]
        peer = soonest(rows, model, prepared=True)
        if peer is not None:
            limits.append((PREPARED, peer["engine"], float(peer["first_ms"]), PEER_LIMIT))
        for ours, theirs, peer_ms, limit in limits:
            if ours in times and peer_ms is not None:
                ratio = round(times[ours] / peer_ms, 3)
                text = f"{model}: {ours} over {theirs}, exec to first answer"
                checks.append(Check(text, ratio, f"<= {limit}", ratio <= limit))
    return checks
