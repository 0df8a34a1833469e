"""Starts by what is sent of a model: its prepared form, or its weights as they are."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from brisk_bench.engines.case import Case
from brisk_bench.harness.report import Report, check_limit
from brisk_bench.harness.sampling import in_rounds
from brisk_bench.sourcing.scene import EQUAL_MBIT_S, Scene, told

PART = "travels"

CHOSEN, FORM, WEIGHTS = "chosen", "form", "weights"
SIDES = (CHOSEN, FORM, WEIGHTS)

MOST_OF_FORM = 0.75
"""The most of the time by the courier's choice over that with the prepared form."""

NOTES = (
    "travels: chosen: weights and form are published, the courier chooses; form: its policy is "
    "told that a start from weights takes for ever; weights: no form is published. took: what "
    "the start read; form_mb, weights_mb: what is published",
)


def measure(report: Report, scene: Scene, case: Case, rounds: int) -> None:
    """Add rows and checks."""
    report.notes.extend(f"links: {line}" for line in scene.shape(EQUAL_MBIT_S))
    both = scene.publish(case.file, f"{PART}-both", with_form=True)
    remotes = {
        CHOSEN: both,
        FORM: both,
        WEIGHTS: scene.publish(case.file, f"{PART}-weights", with_form=False),
    }
    manifest = json.loads((scene.folder / f"{PART}-both" / "manifest.json").read_text())
    form_bytes = sum(file["size"] for file in manifest["files"] if file["form"])
    weight_bytes = sum(size for _, _, size in manifest["order"])
    with scene.starting(case) as starting:

        def start(side: str) -> Mapping[str, Any]:
            return told(starting, "away", remote=remotes[side], forced=side == FORM)

        starts, _ = in_rounds(SIDES, rounds, start)
    report.rows.extend(rows(case.name, starts, form_bytes, weight_bytes))
    add_checks(report)


def rows(
    model: str,
    found: Mapping[str, Sequence[Mapping[str, Any]]],
    form_bytes: int,
    weight_bytes: int,
) -> Iterator[dict[str, Any]]:
    for side, starts in found.items():
        firsts = [start["first_s"] for start in starts]
        yield {
            "part": PART,
            "model": model,
            "side": side,
            "first_s": statistics.median(firsts),
            "spread_s": max(firsts) - min(firsts),
            "last_s": statistics.median(start["last_s"] for start in starts),
            "mb": statistics.median(start["needed_bytes"] for start in starts) / 1e6,
            "took": ", ".join(sorted({str(start["took"]) for start in starts})),
            "form_mb": form_bytes / 1e6,
            "weights_mb": weight_bytes / 1e6,
        }


def add_checks(report: Report) -> None:
    """Add every check that the rows allow."""
    by_side = {row["side"]: row for row in report.rows if row.get("part") == PART}
    chosen, form = by_side[CHOSEN], by_side[FORM]
    text = f"{chosen['model']}: what the courier chooses ({chosen['took']}) over the form"
    ratio = chosen["first_s"] / form["first_s"]
    report.checks.append(check_limit(text, ratio, "<=", MOST_OF_FORM, digits=3))
