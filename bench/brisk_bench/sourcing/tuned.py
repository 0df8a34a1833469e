"""Arrival of a fine-tune at a host that has the model it was made from, warm."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from brisk_bench.engines.case import Case, case_of
from brisk_bench.harness.report import Report, check_limit
from brisk_bench.siblings import write_sibling
from brisk_bench.sourcing.scene import EQUAL_MBIT_S, Scene, told

PART = "tuned"

BESIDE = "beside its sibling"

MOST_LATE = 0.1
"""The most of the first answer's delay after the last byte, over a warm answer."""

NOTES = (
    "tuned: other weights of the same structure, published without a form. last: the last byte "
    "that the start reads is here; late: first less last, over a warm answer of the same start",
)


def measure(report: Report, scene: Scene, case: Case, rounds: int) -> None:
    """Add rows and checks."""
    report.notes.extend(f"links: {line}" for line in scene.shape(EQUAL_MBIT_S))
    file = scene.scratch / f"{case.name}-tuned.onnx"
    write_sibling(case.file, file)
    remote = scene.publish(file, PART, with_form=False)
    with scene.starting(case_of(str(file))) as starting:
        task = {"remote": remote, "sibling": str(case.file), "warm": True}
        starts = [told(starting, "away", **task) for _ in range(rounds)]
    report.rows.append(row(case.name, starts))
    add_checks(report)


def row(model: str, starts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the row over all starts."""
    firsts = [start["first_s"] for start in starts]
    late = [(start["first_s"] - start["last_s"]) / start["warm_s"] for start in starts]
    return {
        "part": PART,
        "model": model,
        "side": BESIDE,
        "first_s": statistics.median(firsts),
        "spread_s": max(firsts) - min(firsts),
        "last_s": statistics.median(start["last_s"] for start in starts),
        "warm_s": statistics.median(start["warm_s"] for start in starts),
        "late": statistics.median(late),
        "mb": statistics.median(start["needed_bytes"] for start in starts) / 1e6,
    }


def add_checks(report: Report) -> None:
    """Add every check that the rows allow."""
    for row in report.rows:
        if row.get("part") == PART and row["side"] == BESIDE:
            text = (
                f"{row['model']} {BESIDE}: first answer behind the last byte, over a warm answer"
            )
            report.checks.append(check_limit(text, row["late"], "<=", MOST_LATE, digits=3))
