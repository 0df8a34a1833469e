"""Speed-ups by batch size (PASK, Table II), and whether first answers are ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from brisk_client.benchmarks.cold.registry import BASE, PREPARED, UNPREPARED
from brisk_client.benchmarks.cold.report.expectations import geometric_mean
from brisk_client.benchmarks.engines.agreement import agree

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


# Whether every engine's first answer is ONNX Runtime's.

OTHER_WEIGHTS = frozenset({"torch eager", "torch aotinductor"})
"""Engines that compute the same network with weights of their own."""


def agreements(folder: Path, engines: Sequence[str]) -> dict[str, bool]:
    """Of ``folder``/ENGINE.npz with ONNX Runtime's, by engine; empty without the latter's."""
    if not (folder / f"{BASE}.npz").exists():
        return {}
    expected = _load(folder / f"{BASE}.npz")
    return {
        engine: agree(_load(folder / f"{engine}.npz"), expected, scaled=True)
        for engine in engines
        if engine not in OTHER_WEIGHTS and (folder / f"{engine}.npz").exists()
    }


def _load(file: Path) -> list[np.ndarray]:
    with np.load(file) as arrays:
        return [arrays[name] for name in sorted(arrays.files)]
