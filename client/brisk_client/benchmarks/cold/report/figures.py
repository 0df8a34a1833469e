"""Figures from a report's rows, each a PNG; one without its rows is left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from brisk_client.benchmarks.cold.models import MODELS
from brisk_client.benchmarks.cold.registry import BASE, PREPARED
from brisk_client.benchmarks.cold.report.drawing import Figure, Values, draw, draw_panels
from brisk_client.report import Report

Rows = Sequence[Mapping[str, Any]]


def draw_all(report: Report, folder: Path) -> list[Path]:
    """Write every figure that the rows suffice for."""
    folder.mkdir(parents=True, exist_ok=True)
    order = [model.name for model in MODELS]
    hot = [row for row in report.rows if row["part"] == "process" and row["batch"] == 1]
    hot.sort(key=lambda row: order.index(row["model"]) if row["model"] in order else len(order))
    first = Figure("engines", "First answer, page cache hot, batch 1", "ms", _of(hot, "first_ms"))
    found = [draw_panels(first, folder)] if hot else []
    figures = [*_of_batches(report), *_of_nnv12(report, hot), *_of_places(report)]
    return found + [draw(each, folder) for each in figures if any(each.values.values())]


def _of_batches(report: Report) -> list[Figure]:
    return [
        Figure(
            "batches",
            "First answer, speed-up over ONNX Runtime by batch size (PASK, Table II)",
            "times, geometric mean over models",
            _of(_part(report, "batches"), "over_onnxruntime", lambda row: f"batch {row['batch']}"),
            line=1.0,
        )
    ]


def _of_nnv12(report: Report, hot: Rows) -> list[Figure]:
    return [
        Figure(
            "nnv12-11",
            "First answer while other processes keep processors busy (NNV12, Fig. 11)",
            "ms",
            _of(
                _part(report, "load"),
                "first_ms",
                lambda row: f"{row['model']}\n{row['load']}",
            ),
        ),
        Figure(
            "nnv12-14",
            "The first inferences of a process (NNV12, Fig. 14)",
            "ms",
            _inferences(hot, {PREPARED: "Brisk", BASE: "ORT"}),
        ),
    ]


def _of_places(report: Report) -> list[Figure]:
    return [
        Figure(
            "disk",
            "First answer from the disk over reading the same bytes",
            "times",
            _of(_part(report, "disk"), "first_over_read"),
            line=1.0,
        ),
        Figure(
            "served",
            "Through Triton: repository load call to first answer",
            "ms",
            _of(_part(report, "served"), "first_ms"),
        ),
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


def _inferences(hot: Rows, engines: Mapping[str, str]) -> Values:
    rows = [row for row in hot if row["engine"] in engines]
    models = list(dict.fromkeys(row["model"] for row in rows))
    rows.sort(key=lambda row: (models.index(row["model"]), str(row["engine"])))
    return {
        name: {f"{row['model']}\n{engines[row['engine']]}": row[f"{name}_ms"] for row in rows}
        for name in ("first", "second", "third", "warm")
    }
