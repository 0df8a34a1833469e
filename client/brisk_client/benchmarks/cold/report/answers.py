"""Whether every engine's first answer is ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from brisk_client.benchmarks.cold.registry import BASE
from brisk_client.benchmarks.engines.agreement import agree

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
