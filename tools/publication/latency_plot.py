"""The README's plot: how a real-time model's latency is distributed, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from brisk_bench.disb.comparison.checks import best_row
from brisk_bench.harness.tails import CURVE
from publication.drawing import Area, Axis, curve, round_ticks, sheet, words
from publication.runs import PublishedRun, UnusableRunError

WORKLOAD = "C"
QUANTILES = "quantiles_ms"
SIDES = {
    "RT-only": ("alone", "alone"),
    "preemptive": ("Brisk", "ours"),
    "shared": ("uncontrolled", "free"),
    "triton": ("Triton's own priorities", "peer"),
}
"""Sides of the run, by the prefix of each name: the plot's label, and its curve."""

_LEFT, _RIGHT, _TOP, _BOTTOM, _HEIGHT = 60, 700, 86, 330, 374


def latency_plot(run: PublishedRun) -> str:
    """Return an SVG: the cumulative distribution of the latency of SIDES, on a logarithmic axis.

    Each curve ends where fewer than ten answers are slower. Raises UnusableRunError if the run
    lacks a side.
    """
    rows = [_row(run, side) for side in SIDES]
    every = [value for row in rows for value in row[QUANTILES]]
    least, most = 0.95 * min(every), 1.05 * max(every)
    area = Area(Axis(least, most, _LEFT, _RIGHT, True), Axis(0, 1, _BOTTOM, _TOP))
    shares = {0.0: "0", 0.25: "25 %", 0.5: "50 %", 0.75: "75 %", 1.0: "100 %"}
    ticks = round_ticks(least, most)
    parts = area.frame(ticks, shares, "latency, ms, logarithmic", "share of answers")
    x = float(_LEFT)
    for (label, kind), row in zip(SIDES.values(), rows, strict=True):
        points = [area.at(*point) for point in zip(row[QUANTILES], CURVE, strict=False)]
        parts.append(curve(points, kind))
        parts.append(curve([(x, 48), (x + 22, 48)], kind))
        parts.append(words((x + 28, 52), label, "strong" if kind == "ours" else ""))
        x += 60 + 7.2 * len(label)
    return sheet(f"Latency of a real-time model, DISB's workload {WORKLOAD}", _HEIGHT, parts)


def _row(run: PublishedRun, side: str) -> Mapping[str, Any]:
    """Return a side's row of all rounds; of Triton's sides the best one.

    Rows of trials and single runs, which have a stage, are left out. Raises UnusableRunError
    without one.
    """
    rows = [
        row
        for row in run.rows
        if row.get("workload") == WORKLOAD
        and str(row.get("side", "")).startswith(side)
        and not row.get("stage")
    ]
    best = best_row(rows) if len(rows) > 1 else next(iter(rows), {})
    if not _is_distribution(best.get(QUANTILES)):
        raise UnusableRunError(
            f"{run.file}: {len(rows)} rows of workload {WORKLOAD} are of '{side}', wanted is one "
            f"with {QUANTILES}"
        )
    return best


def _is_distribution(found: Sequence[Any] | None) -> bool:
    """Whether the values are positive, do not fall, and reach the last percent."""
    return (
        isinstance(found, list)
        and CURVE.index(0.99) < len(found) <= len(CURVE)
        and found[0] > 0
        and all(one <= other for one, other in pairwise(found))
    )
