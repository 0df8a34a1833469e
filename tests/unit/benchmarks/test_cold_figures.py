"""Figures of `brisk bench cold`: one for each that the rows suffice for, of the papers' values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brisk_client.benchmarks.cold import figures
from brisk_client.benchmarks.cold.drawing import Figure
from brisk_client.report import Report

FIRST_MS = {
    "brisk": 10.0,
    "brisk baseline": 40.0,
    "brisk nnv12_k": 30.0,
    "brisk nnv12_kc": 20.0,
    "brisk nnv12": 16.0,
    "brisk pask_i": 25.0,
    "brisk pask_r": 50.0,
    "brisk pask": 20.0,
    "brisk ideal": 5.0,
    "onnxruntime": 80.0,
}


def _report() -> Report:
    times = {"second_ms": 6.0, "third_ms": 5.0, "warm_ms": 5.0, "utilisation": 0.5}
    rows: list[dict[str, Any]] = []
    for model, factor in (("vit", 1.0), ("resnet50", 4.0)):
        for engine, first_ms in FIRST_MS.items():
            row = {"model": model, "batch": 1, "engine": engine, "first_ms": first_ms * factor}
            rows.append({"part": "process", **row, **times})
            rows.append({"part": "breakdown", **row, "run": 0.7, "parse": 0.3})
            rows.append({"part": "reuse", **row, "hit_rate": 0.7, "lookups_per_query": 1.2})
            rows.append({"part": "load", **row, "load": "50% of each core"})
            rows.append({"part": "disk", **row, "first_over_read": 1.5})
            rows.append({"part": "served", **row})
            rows.append({"part": "batches", "engine": engine, "batch": 4, "over_baseline": 2.0})
    return Report("cold", {}, {}, rows, [])


def test_every_figure_of_the_papers_is_drawn_once_there_are_its_rows(tmp_path: Path) -> None:
    found = {file.name for file in figures.draw_all(_report(), tmp_path)}
    names = ["6a", "6b", "7-pask", "7-brisk", "8", "9a", "9b", "table-2"]
    expected = {f"pask-{name}" for name in names} | {f"nnv12-{number}" for number in (11, 13, 14)}
    assert found == {f"cold-{name}.png" for name in expected | {"engines", "disk", "served"}}
    assert {file.name for file in tmp_path.iterdir()} == found


def test_without_rows_nothing_is_drawn(tmp_path: Path) -> None:
    assert figures.draw_all(Report("cold", {}, {}, [], []), tmp_path) == []


def test_what_is_drawn_are_ratios_to_the_papers_bases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, Figure] = {}

    def note(figure: Figure, folder: Path) -> Path:
        drawn[figure.name] = figure
        return folder

    monkeypatch.setattr(figures, "draw", note)
    monkeypatch.setattr(figures, "draw_panels", note)
    figures.draw_all(_report(), tmp_path)
    over = drawn["pask-6a"].values
    assert over["brisk pask"] == pytest.approx({"resnet50": 2.0, "vit": 2.0, figures.MEAN: 2.0})
    assert list(over["brisk"]) == ["resnet50", "vit", figures.MEAN]
    assert drawn["pask-8"].values["brisk pask_r"]["vit"] == pytest.approx(0.4)
    assert drawn["nnv12-13"].values["K+C"] == {"resnet50": 80.0, "vit": 20.0}
    assert drawn["nnv12-14"].values["second"]["vit\nBrisk"] == 6.0
    assert drawn["pask-7-brisk"].values["running layers"]["vit"] == 0.7
