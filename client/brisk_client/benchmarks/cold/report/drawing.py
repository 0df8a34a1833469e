"""Bars that can be read: a series' colour in every figure, values over bars, the legend beside."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brisk_client.report import Report, show

Values = Mapping[str, Mapping[str, float]]
"""Heights of bars by series, then by group."""

NAMES = {
    "brisk": "Brisk, prepared",
    "brisk unprepared": "Brisk, unprepared",
    "onnxruntime": "ONNX Runtime",
    "onnxruntime as it comes": "ONNX Runtime, as it comes",
    "onnxruntime unoptimised": "ONNX Runtime, unoptimised",
    "onnxruntime prepared": "ONNX Runtime, prepared",
    "onnxruntime prepared without packing": "ONNX Runtime, prepared, unpacked",
    "onnxruntime own format": "ONNX Runtime, its own format",
    "openvino": "OpenVINO",
    "openvino cached": "OpenVINO, model cache",
    "torch eager": "torch, eager",
    "torch aotinductor": "torch, AOTInductor",
}
"""Of engines, as legends show them, in the order of the colours."""

_MOST_LABELLED = 80
"""Bars in a figure; above it their values would cover each other."""


@dataclass(frozen=True, slots=True)
class Figure:
    """``line``: a height to compare with."""

    name: str
    title: str
    unit: str
    values: Values
    line: float | None = None


def draw(figure: Figure, folder: Path) -> Path:
    """Write ``folder``/cold-NAME.png: groups side by side."""
    pyplot = _pyplot()
    values = figure.values
    groups = list(dict.fromkeys(group for series in values.values() for group in series))
    width = 0.8 / len(values)
    bars = len(groups) * len(values)
    inches = 3.2 + max(2.5, 0.26 * bars, 1.0 * len(groups))
    canvas, axes = pyplot.subplots(figsize=(inches, 4.2), layout="constrained")
    for index, (name, series) in enumerate(values.items()):
        heights = [series.get(group, 0.0) for group in groups]
        shift = (index - (len(values) - 1) / 2) * width
        places = [place + shift for place in range(len(groups))]
        drawn = axes.bar(
            places,
            heights,
            width,
            label=NAMES.get(name, name),
            color=_colour(pyplot, name, index),
        )
        if bars <= _MOST_LABELLED:
            texts = [_text(height) if group in series else "" for group, height in
                     zip(groups, heights, strict=True)]  # fmt: skip
            axes.bar_label(drawn, texts, fontsize=6.5, rotation=90, padding=2)
    if figure.line is not None:
        axes.axhline(figure.line, color="black", linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(groups)), groups, fontsize=8)
    axes.margins(y=0.15)
    axes.set_ylabel(figure.unit)
    axes.set_title(figure.title, fontsize=10)
    canvas.legend(loc="outside right upper", fontsize=8)
    return _save(pyplot, canvas, folder / f"cold-{figure.name}.png")


def draw_panels(figure: Figure, folder: Path) -> Path:
    """Write ``folder``/cold-NAME.png: a panel a group, a horizontal bar a series."""
    pyplot = _pyplot()
    values = figure.values
    groups = list(dict.fromkeys(group for series in values.values() for group in series))
    columns = min(3, len(groups))
    rows = -(-len(groups) // columns)
    size = (3.0 + 3.0 * columns, 0.6 + (0.7 + 0.2 * len(values)) * rows)
    canvas, panels = pyplot.subplots(
        rows, columns, figsize=size, layout="constrained", squeeze=False, sharey=True
    )
    names = list(values)
    for panel, group in zip(panels.flat, groups, strict=False):
        lengths = [values[name].get(group, 0.0) for name in names]
        colours = [_colour(pyplot, name, index) for index, name in enumerate(names)]
        drawn = panel.barh([NAMES.get(name, name) for name in names], lengths, color=colours)
        panel.bar_label(drawn, [_text(each) if each else "" for each in lengths], fontsize=6.5,
                        padding=2)  # fmt: skip
        panel.margins(x=0.18)
        panel.set_title(group, fontsize=9)
        panel.set_xlabel(figure.unit, fontsize=8)
        panel.tick_params(labelsize=7)
    for panel in list(panels.flat)[len(groups) :]:
        panel.set_visible(False)
    panels[0][0].invert_yaxis()
    canvas.suptitle(figure.title, fontsize=10)
    return _save(pyplot, canvas, folder / f"cold-{figure.name}.png")


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _colour(pyplot: Any, name: str, index: int) -> Any:
    """Of an engine the same in every figure; twenty, since ten would repeat among the peers."""
    colours: Sequence[Any] = pyplot.get_cmap("tab20").colors
    known = list(NAMES)
    return colours[(known.index(name) if name in known else index) % len(colours)]


def _text(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _save(pyplot: Any, canvas: Any, file: Path) -> Path:
    canvas.savefig(file, dpi=110)
    pyplot.close(canvas)
    return file


# The report on the screen: a table for each part, since the parts' columns differ.


def show_parts(report: Report) -> None:
    """Print the parts' rows, then every check and note."""
    for part in dict.fromkeys(row["part"] for row in report.rows):
        rows = [
            {key: value for key, value in row.items() if key != "part"}
            for row in report.rows
            if row["part"] == part
        ]
        show(dataclasses.replace(report, name=f"cold, {part}", rows=rows, checks=[], notes=[]))
    show(dataclasses.replace(report, rows=[]))
