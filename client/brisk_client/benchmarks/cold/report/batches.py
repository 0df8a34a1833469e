"""Speed-ups over ONNX Runtime by batch size, geometric means over the models (PASK, Table II)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brisk_client.benchmarks.cold.registry import BASE, PREPARED, UNPREPARED
from brisk_client.benchmarks.cold.report.expectations import geometric_mean

WARM = "warm"

ENGINES = (UNPREPARED, PREPARED, WARM)


def batch_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each batch size and engine; none where only one size was measured."""
    hot = [row for row in rows if row["part"] == "process"]
    sizes = sorted({row["batch"] for row in hot})
    if len(sizes) < 2:
        return []
    found = []
    for batch in sizes:
        first = {
            (row["model"], row["engine"]): row["first_ms"] for row in hot if row["batch"] == batch
        }
        first |= {
            (row["model"], WARM): row["second_ms"]
            for row in hot
            if row["batch"] == batch and row["engine"] == PREPARED
        }
        for compared in ENGINES:
            gains = [
                first[model, BASE] / taken_ms
                for (model, engine), taken_ms in first.items()
                if engine == compared and (model, BASE) in first
            ]
            if gains:
                found.append(
                    {
                        "part": "batches",
                        "batch": batch,
                        "engine": compared,
                        "models": len(gains),
                        "over_onnxruntime": round(geometric_mean(gains), 2),
                    }
                )
    return found
