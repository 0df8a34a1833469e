"""What packing gains, as a preparation measures it: nothing else may run meanwhile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from brisk.segments.prepared.form import PreparedModel
from brisk.segments.prepared.manifest import LEAST_BATCH_GAIN
from brisk.segments.prepared.preparation import prepare
from support.models.segment_models import info, save
from support.waiting import TIMED

pytestmark = [
    pytest.mark.timing,
    pytest.mark.usefixtures("private_cache", "short_segments"),
]

ATTEMPTS = 4
"""Packing doubles the speed here; who computes beside hides that from one measurement, seldom from
several. What is kept is the fastest run of each side: no machine makes such a gain up of nothing.
"""


def product(path: Path, seed: int) -> Path:
    weights = np.random.default_rng(seed).standard_normal((2048, 2048)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return save(path, nodes, [info("x", "n", 2048)], [info("y", "n", 2048)], {"w": weights})


def test_a_network_of_matrices_packs_for_its_batches(tmp_path: Path) -> None:
    """A row alone is as fast without: ONNX Runtime packs as it goes, for each run of several."""
    gains: list[float] = []
    while len(gains) < ATTEMPTS and max(gains, default=0.0) < LEAST_BATCH_GAIN:
        model = product(tmp_path / f"product{len(gains)}.onnx", seed=len(gains))
        (kept,) = PreparedModel(prepare(model, 1).path, model, 1).kept
        assert kept.batch_gain is not None
        assert kept.packs or kept.batch_gain < LEAST_BATCH_GAIN
        gains.append(kept.batch_gain)
    with TIMED:
        assert max(gains) >= LEAST_BATCH_GAIN, gains
