"""Figures of `brisk bench cold`: for each part that the rows have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from brisk_bench.cold import plot_parts
from brisk_bench.harness.report import Report

FIRST_MS = {"brisk": 10.0, "brisk unprepared": 20.0, "onnxruntime": 80.0}


def _report() -> Report:
    times = {"second_ms": 6.0, "third_ms": 5.0, "warm_ms": 5.0}
    rows: list[dict[str, Any]] = []
    for model, factor in (("vit", 1.0), ("resnet50", 4.0)):
        for engine, first_ms in FIRST_MS.items():
            row = {"model": model, "batch": 1, "engine": engine, "first_ms": first_ms * factor}
            rows.append({"part": "process", **row, **times})
            rows.append({"part": "disk", **row, "first_over_read": 1.5})
            rows.append({"part": "served", **row})
    return Report("cold", {}, {}, rows, [])


def test_every_part_is_drawn_once_there_are_its_rows(tmp_path: Path) -> None:
    found = {file.name for file in plot_parts(_report(), tmp_path)}
    parts = [
        f"{part}-{model}"
        for part in ("process", "disk", "served")
        for model in ("vit", "resnet50")
    ]
    assert found == {f"cold-{name}.png" for name in parts}
    assert {file.name for file in tmp_path.iterdir()} == found


def test_without_rows_nothing_is_drawn(tmp_path: Path) -> None:
    assert plot_parts(Report("cold", {}, {}, [], []), tmp_path) == []
