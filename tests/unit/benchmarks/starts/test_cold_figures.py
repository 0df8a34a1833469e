"""Figures of `brisk bench cold`: one for each that the rows suffice for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brisk_client.benchmarks.cold.report import figures
from brisk_client.benchmarks.cold.report.drawing import Figure
from brisk_client.report import Report

pytestmark = pytest.mark.timing

FIRST_MS = {"brisk": 10.0, "brisk unprepared": 20.0, "onnxruntime": 80.0}


def _report() -> Report:
    times = {"second_ms": 6.0, "third_ms": 5.0, "warm_ms": 5.0}
    rows: list[dict[str, Any]] = []
    for model, factor in (("vit", 1.0), ("resnet50", 4.0)):
        for engine, first_ms in FIRST_MS.items():
            row = {"model": model, "batch": 1, "engine": engine, "first_ms": first_ms * factor}
            rows.append({"part": "process", **row, **times})
            rows.append({"part": "load", **row, "load": "50% of each core"})
            rows.append({"part": "disk", **row, "first_over_read": 1.5})
            rows.append({"part": "served", **row})
            if engine != "onnxruntime":
                more = {"batch": 4, "over_onnxruntime": 2.0}
                rows.append({"part": "batches", "engine": engine, **more})
    return Report("cold", {}, {}, rows, [])


def test_every_figure_is_drawn_once_there_are_its_rows(tmp_path: Path) -> None:
    found = {file.name for file in figures.draw_all(_report(), tmp_path)}
    names = ["engines", "batches", "nnv12-11", "nnv12-14", "disk", "served"]
    assert found == {f"cold-{name}.png" for name in names}
    assert {file.name for file in tmp_path.iterdir()} == found


def test_without_rows_nothing_is_drawn(tmp_path: Path) -> None:
    assert figures.draw_all(Report("cold", {}, {}, [], []), tmp_path) == []


def test_what_is_drawn_are_the_values_of_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, Figure] = {}

    def note(figure: Figure, folder: Path) -> Path:
        drawn[figure.name] = figure
        return folder

    monkeypatch.setattr(figures, "draw", note)
    monkeypatch.setattr(figures, "draw_panels", note)
    figures.draw_all(_report(), tmp_path)
    assert drawn["engines"].values["brisk"] == {"resnet50": 40.0, "vit": 10.0}
    assert drawn["batches"].values["brisk unprepared"] == {"batch 4": 2.0}
    assert drawn["nnv12-14"].values["second"]["vit\nBrisk"] == 6.0
    assert drawn["disk"].values["onnxruntime"]["vit"] == 1.5
