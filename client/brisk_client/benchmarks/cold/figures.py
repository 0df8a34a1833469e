"""The papers' figures from a report's rows, each a PNG; one without its rows is left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from brisk_client.benchmarks.cold.breakdown import PHASES
from brisk_client.report import Report

Rows = Sequence[Mapping[str, Any]]
Values = Mapping[str, Mapping[str, float]]
"""Heights of bars by series, then by group."""

SCHEMES = (
    "brisk baseline",
    "brisk nnv12",
    "brisk pask_i",
    "brisk pask_r",
    "brisk pask",
    "brisk",
    "brisk ideal",
)
BASELINE, PASK = "brisk baseline", "brisk pask"


def draw_all(report: Report, folder: Path) -> list[Path]:
    """Write every figure that the rows suffice for."""
    folder.mkdir(parents=True, exist_ok=True)
    hot = [row for row in report.rows if row["part"] == "process" and row["batch"] == 1]
    figures: list[tuple[str, str, str, Values, bool]] = [
        ("pask-6a", "Speed-up over Baseline", "times", _over(hot, BASELINE), False),
        ("pask-6b", "Utilisation of the first answer", "share", _of(hot, "utilisation"), False),
        ("pask-7-pask", "Where PaSK's first answer goes", "share", _phases(report, PASK), True),
        (
            "pask-7-brisk",
            "Where Brisk's first answer goes",
            "share",
            _phases(report, "brisk"),
            True,
        ),
        ("pask-8", "Speed normalised to PaSK's", "share", _over(hot, PASK), False),
        ("pask-9a", "Hit rate", "share", _of(_part(report, "reuse"), "hit_rate"), False),
        (
            "pask-9b",
            "Look-ups a query",
            "number",
            _of(_part(report, "reuse"), "lookups_per_query"),
            False,
        ),
        ("nnv12-11", "First answer beside other load", "ms", _loads(report), False),
        ("nnv12-13", "What each technique saves", "ms", _ablation(hot), False),
        ("nnv12-14", "Brisk's first inferences", "ms", _inferences(hot, "brisk"), False),
        ("engines", "First answer", "ms", _of(hot, "first_ms"), False),
        ("disk", "First answer over reading the bytes", "times", _disk(report), False),
        ("served", "Through Triton", "ms", _of(_part(report, "served"), "first_ms"), False),
    ]
    return [
        _draw(folder / f"cold-{name}.png", title, unit, values, stacked)
        for name, title, unit, values, stacked in figures
        if any(values.values())
    ]


def _part(report: Report, part: str) -> Rows:
    return [row for row in report.rows if row["part"] == part]


def _of(rows: Rows, key: str, group: Callable[[Mapping[str, Any]], str] | None = None) -> Values:
    """Values of ``key`` by engine, then by model (or ``group``); rows without one are left out."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.get(key) is not None:
            name = group(row) if group else str(row["model"])
            found.setdefault(str(row["engine"]), {})[name] = float(row[key])
    return found


def _over(rows: Rows, base: str) -> Values:
    """``base``'s first answer over each scheme's."""
    first = _of(rows, "first_ms")
    if base not in first:
        return {}
    return {
        scheme: {
            model: first[base][model] / took_ms
            for model, took_ms in first[scheme].items()
            if model in first[base]
        }
        for scheme in SCHEMES
        if scheme in first
    }


def _phases(report: Report, engine: str) -> Values:
    rows = [row for row in _part(report, "breakdown") if row["engine"] == engine]
    return {phase: {str(row["model"]): row[phase] for row in rows} for phase in PHASES}


def _loads(report: Report) -> Values:
    return _of(
        _part(report, "load"), "first_ms", lambda row: f"{row['model']}, {row['load']:.0%} busy"
    )


def _ablation(hot: Rows) -> Values:
    first = _of(hot, "first_ms")
    named = {
        "none": BASELINE,
        "K": "brisk nnv12_k",
        "K+C": "brisk nnv12_kc",
        "K+C+P": "brisk nnv12",
        "warm": "brisk ideal",
    }
    return {label: first[engine] for label, engine in named.items() if engine in first}


def _inferences(hot: Rows, engine: str) -> Values:
    rows = [row for row in hot if row["engine"] == engine]
    return {
        name: {str(row["model"]): row[f"{name}_ms"] for row in rows}
        for name in ("first", "second", "third", "warm")
    }


def _disk(report: Report) -> Values:
    return _of(_part(report, "disk"), "first_over_read")


def _draw(file: Path, title: str, unit: str, values: Values, stacked: bool) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = list(dict.fromkeys(group for series in values.values() for group in series))
    width = 0.8 if stacked else 0.8 / len(values)
    size = (max(5.0, 1.2 + len(groups) * (0.8 if stacked else 0.35 * len(values))), 4.0)
    figure, axes = pyplot.subplots(figsize=size, layout="constrained")
    axes.set_prop_cycle(color=pyplot.get_cmap("tab20").colors)  # ten would repeat among the peers
    base = [0.0] * len(groups)
    for index, (name, series) in enumerate(values.items()):
        heights = [series.get(group, 0.0) for group in groups]
        shift = 0.0 if stacked else (index - (len(values) - 1) / 2) * width
        places = [place + shift for place in range(len(groups))]
        axes.bar(places, heights, width, bottom=base if stacked else None, label=name)
        if stacked:
            base = [lower + height for lower, height in zip(base, heights, strict=True)]
    axes.set_xticks(range(len(groups)), groups, rotation=20 if len(groups) > 4 else 0)
    axes.set_ylabel(unit)
    axes.set_title(title)
    axes.legend(fontsize=7)
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
    return file
