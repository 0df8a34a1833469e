"""PASK's table II: speed-ups over Baseline by batch size, geometric means over the models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brisk_client.benchmarks.cold.expectations import geometric_mean
from brisk_client.benchmarks.cold.registry import BASE, PREPARED, UNPREPARED

BASELINE, WARM = "brisk baseline", "warm"

SCHEMES = ("brisk nnv12", "brisk pask", UNPREPARED, PREPARED, WARM, BASE)


def batch_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each batch size and scheme; none where only one size was measured."""
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
        for scheme in SCHEMES:
            gains = [
                first[model, BASELINE] / taken_ms
                for (model, engine), taken_ms in first.items()
                if engine == scheme and (model, BASELINE) in first
            ]
            if gains:
                found.append(
                    {
                        "part": "batches",
                        "batch": batch,
                        "engine": scheme,
                        "models": len(gains),
                        "over_baseline": round(geometric_mean(gains), 2),
                    }
                )
    return found
