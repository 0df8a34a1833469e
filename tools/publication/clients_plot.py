"""The plot of throughput: answers a second over the number of clients, side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from brisk_bench.throughput.checks import CLOSED
from brisk_bench.throughput.load import GRPC
from brisk_bench.throughput.sides import BRISK, JOINED, PYTHON
from publication.drawing import Area, Axis, curve, dot, sheet, words
from publication.runs import PublishedRun, UnusableRunError

CLIENTS = "clients"
SIDES = {BRISK: "ours", JOINED: "peer", PYTHON: "alone"}
"""Sides of the run, each with its curve. The second exists only where Triton batches."""

PANELS = {True: "with dynamic_batching", False: "without dynamic_batching"}
"""Parts of the plot, by whether Triton batches; a model of fixed rows has the second only."""

_LEFT, _WIDTH, _GAP, _TOP, _BOTTOM, _HEIGHT = 60, 290, 60, 96, 320, 364


def clients_plot(run: PublishedRun) -> str:
    """Return an SVG: the throughput of SIDES over gRPC, closed loops, each of PANELS apart.

    Raises UnusableRunError if there is no panel with two numbers of clients.
    """
    rows = [row for row in run.rows if row.get("load") == CLOSED and row.get("transport") == GRPC]
    panels = {
        title: [row for row in rows if row.get("batching") is batching]
        for batching, title in PANELS.items()
    }
    panels = {title: rows for title, rows in panels.items() if len(_counts(rows)) > 1}
    if not panels:
        raise UnusableRunError(
            f"{run.file}: wanted are rows of closed loops over {GRPC} with two numbers of clients"
        )
    most = max(row["per_s"] for rows in panels.values() for row in rows)
    parts: list[str] = []
    x = float(_LEFT)
    for side, kind in SIDES.items():
        parts.append(curve([(x, 46), (x + 22, 46)], kind))
        parts.append(words((x + 28, 50), side, "strong" if side == BRISK else ""))
        x += 60 + 7.2 * len(side)
    for place, (title, of_panel) in enumerate(panels.items()):
        left = _LEFT + place * (_WIDTH + _GAP)
        parts += _panel(title, of_panel, left, most)
    model = run.rows[0]["model"]
    return sheet(f"Throughput of {model} by number of clients", _HEIGHT, parts)


def _panel(title: str, rows: Sequence[Mapping[str, Any]], left: float, most: float) -> list[str]:
    counts = _counts(rows)
    step = _step(most)
    ticks = {tick * step: f"{tick * step:,.0f}" for tick in range(math.ceil(most / step) + 1)}
    area = Area(
        Axis(counts[0], counts[-1], left, left + _WIDTH, True),
        Axis(0, max(ticks), _BOTTOM, _TOP),
    )
    parts = area.frame(counts, ticks, "clients", f"answers a second, {title}")
    for side, kind in SIDES.items():
        values = {row[CLIENTS]: row["per_s"] for row in rows if row.get("side") == side}
        points = [area.at(count, values[count]) for count in counts if count in values]
        if points:
            parts.append(curve(points, kind))
        if side == BRISK:
            parts += [dot(point) for point in points]
    return parts


def _counts(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    return sorted({row[CLIENTS] for row in rows})


def _step(most: float) -> float:
    """Return the least of 1, 2 and 5 times powers of ten that reaches ``most`` in six steps."""
    power = 10.0 ** math.floor(math.log10(most / 6))
    return next(power * digit for digit in (1, 2, 5, 10) if 6 * power * digit >= most)
