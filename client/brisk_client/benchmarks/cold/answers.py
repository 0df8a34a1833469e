"""Whether every engine's first answer is ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from brisk_client.benchmarks.cold.registry import BASE
from brisk_client.report import Check

OTHER_WEIGHTS = frozenset({"torch eager", "torch aotinductor"})
"""Engines that compute the same network with weights of their own."""

RTOL, ATOL = 1e-3, 1e-4


def answer_check(model: str, folder: Path, engines: Sequence[str]) -> Check | None:
    """Compares ``folder``/ENGINE.npz; None where there is nothing to compare with."""
    if not (folder / f"{BASE}.npz").exists():
        return None
    expected = _load(folder / f"{BASE}.npz")
    wrong = [
        engine
        for engine in engines
        if engine not in OTHER_WEIGHTS
        and (folder / f"{engine}.npz").exists()
        and not _agree(_load(folder / f"{engine}.npz"), expected)
    ]
    name = f"{model}: first answers agree with {BASE}'s"
    found = f"not those of {', '.join(wrong)}" if wrong else "all"
    return Check(name, found, f"all, rtol {RTOL}, atol {ATOL} of the largest", not wrong)


def _load(file: Path) -> list[np.ndarray]:
    with np.load(file) as arrays:
        return [arrays[name] for name in sorted(arrays.files)]


def _agree(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> bool:
    """``atol`` grows with the answer's own size, which random weights do not keep near one."""
    return len(found) == len(expected) and all(
        ours.shape == theirs.shape
        and np.allclose(ours, theirs, RTOL, ATOL * max(1.0, float(np.abs(theirs).max(initial=0))))
        for ours, theirs in zip(found, expected, strict=True)
    )
