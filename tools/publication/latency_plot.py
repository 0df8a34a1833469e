"""The README's plot: a real-time model's latency, side by side, drawn from a published run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from publication.runs import PublishedRun, UnusableRunError

FILE, WORKLOAD = "preempt-workloads", "C"
SIDES = {"RT-only": "alone", "padded": "Brisk", "shared": "no control", "triton": "Triton"}
"""Sides of the run, by how the name of each begins, and what the plot calls them."""

QUANTILES = ("p50_ms", "p90_ms", "p99_ms")
_LEFT, _RIGHT, _TOP, _HEIGHT, _WIDTH = 110, 70, 56, 14, 720

_STYLE = """
.ground { fill: #ffffff; } text { font: 13px sans-serif; fill: #1f2328; }
.small { font-size: 11px; fill: #57606a; } .strong { font-weight: bold; }
.p50_ms { fill: #9ec8ff; } .p90_ms { fill: #4a90e2; } .p99_ms { fill: #0b4f9e; }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117; } text { fill: #e6edf3; } .small { fill: #9198a1; }
.p50_ms { fill: #1f4b80; } .p90_ms { fill: #3b82d0; } .p99_ms { fill: #8fc3ff; } }
"""


def latency_plot(run: PublishedRun) -> str:
    """An SVG: bars of the median, the 90th and the 99th percentile, ms, of each of SIDES.

    Raises UnusableRunError where the run lacks a side or a percentile.
    """
    rows = _rows(run)
    longest = max(row[name] for _, row in rows for name in QUANTILES)
    scale = (_WIDTH - _LEFT - _RIGHT) / longest
    parts: list[str] = []
    y = _TOP
    for label, row in rows:
        kind = "strong" if label == "Brisk" else ""
        parts.append(_text(_LEFT - 10, y + 1.5 * _HEIGHT + 4, label, kind, "end"))
        for name in QUANTILES:
            width = row[name] * scale
            parts.append(
                f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_HEIGHT - 2}" '
                f'class="{name}"/>'
            )
            parts.append(_text(_LEFT + width + 6, y + 10, f"{row[name]:.0f}", "small"))
            y += _HEIGHT
        y += 10
    title = f"A real-time model's latency under DISB's workload {WORKLOAD}, ms"
    head = [_text(16, 24, title, "strong"), *_legend()]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y + 6}" '
        f'viewBox="0 0 {_WIDTH} {y + 6}" role="img" aria-label="{escape(title)}">\n'
        f"<style>{_STYLE}</style>\n"
        f'<rect class="ground" width="{_WIDTH}" height="{y + 6}"/>\n'
        + "\n".join([*head, *parts])
        + "\n</svg>\n"
    )


def _rows(run: PublishedRun) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """Name and row of each side, those of the rounds: a side's first trials have a stage."""
    found = []
    for side, label in SIDES.items():
        rows = [
            row
            for row in run.rows
            if row.get("workload") == WORKLOAD
            and str(row.get("side", "")).startswith(side)
            and not row.get("stage")
        ]
        if len(rows) != 1 or not all(isinstance(rows[0].get(name), float) for name in QUANTILES):
            raise UnusableRunError(
                f"{run.file}: {len(rows)} rows of workload {WORKLOAD} are of '{side}', wanted is "
                f"one with {', '.join(QUANTILES)}"
            )
        found.append((label, rows[0]))
    return found


def _legend() -> Iterator[str]:
    for place, (name, words) in enumerate(zip(QUANTILES, ("median", "90 %", "99 %"), strict=True)):
        x = _LEFT + 90 * place
        yield f'<rect x="{x}" y="34" width="11" height="11" class="{name}"/>'
        yield _text(x + 16, 44, words, "small")


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )
