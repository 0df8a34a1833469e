"""The plot of first answers through Triton: the parts of each, engine by engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from publication.drawing import bar, sheet, words
from publication.runs import PublishedRun, UnusableRunError

MODEL = "resnet50"
PARTS = {
    "stub_ms": ("first", "stub"),
    "parse_ms": ("second", "parse"),
    "load_ms": ("third", "load"),
    "run_ms": ("fourth", "run"),
}
"""Columns of the run: the bar of each, and its label in the plot. The second may be missing; it is
within the third then."""

WHOLE = "first_ms"

ENGINES = {
    "brisk": "Brisk, prepared",
    "brisk unprepared": "Brisk, from the file",
    "onnxruntime": "ONNX Runtime",
    "onnxruntime prepared": "ONNX Runtime, prepared",
    "onnxruntime prepared without packing": "the same, not packed",
    "torch": "torch",
}
_LEFT, _RIGHT, _TOP, _STEP, _BAR = 185, 440, 66, 28, 18
_COLUMNS = (490, 545, 590, 635, 700)
"""The right ends, in x, of the figures of each part, and of those of the whole."""


def start_plot(run: PublishedRun) -> str:
    """Return an SVG: a bar for each of ENGINES, stacked from PARTS, with their figures.

    Raises UnusableRunError if the run lacks an engine or a part.
    """
    rows = {label: _row(run, engine) for engine, label in ENGINES.items()}
    scale = (_RIGHT - _LEFT) / max(sum(_parts(row)) for row in rows.values())
    kinds = [kind for kind, _ in PARTS.values()]
    parts = []
    for right, (kind, name) in zip(_COLUMNS, PARTS.values(), strict=False):
        parts.append(words((right, 52), name, "small", "end"))
        parts.append(bar((right - 11, 26), (11, 11), kind))
    parts.append(words((_COLUMNS[-1], 52), "all, ms", "small", "end"))
    for place, (label, row) in enumerate(rows.items()):
        y = _TOP + _STEP * place
        weight = "strong" if label.startswith("Brisk") else ""
        parts.append(words((_LEFT - 10, y + 14), label, weight, "end"))
        x = float(_LEFT)
        for kind, taken_ms in zip(kinds, _parts(row), strict=True):
            parts.append(bar((x, y), (taken_ms * scale, _BAR), kind))
            x += taken_ms * scale
        figures = [_figure(row[name]) for name in (*PARTS, WHOLE)]
        for right, figure in zip(_COLUMNS, figures, strict=True):
            is_whole = right == _COLUMNS[-1]
            parts.append(words((right, y + 14), figure, weight if is_whole else "small", "end"))
    y = _TOP + _STEP * len(rows) + 14
    aside = "All but Brisk: in Triton's Python backend. Medians. stub: Triton, its stub, all ways."
    parts.append(words((16, y), aside, "small"))
    title = "ResNet-50 through Triton: load call to first answer"
    return sheet(title, y + 14, parts)


def _figure(taken_ms: float | None) -> str:
    if taken_ms is None:
        return "in load"
    return f"{taken_ms:.0f}" if taken_ms >= 10 else f"{taken_ms:.1f}"


def _parts(row: Mapping[str, Any]) -> Sequence[float]:
    return [row[name] or 0.0 for name in PARTS]


def _row(run: PublishedRun, engine: str) -> Mapping[str, Any]:
    rows = [row for row in run.rows if row.get("model") == MODEL and row.get("engine") == engine]
    wanted = [name for name in (*PARTS, WHOLE) if name != "parse_ms"]
    if len(rows) != 1 or not all(isinstance(rows[0].get(name), float) for name in wanted):
        raise UnusableRunError(
            f"{run.file}: {len(rows)} rows of {MODEL} are of '{engine}', wanted is one with "
            f"{', '.join(wanted)}"
        )
    return rows[0]
