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

pytestmark = [
    pytest.mark.timing,
    pytest.mark.usefixtures("private_cache", "short_segments"),
]


TIMES = 3
"""A busy machine measures less: of so many preparations one finds the gain."""


def test_a_network_of_matrices_packs_for_its_batches(tmp_path: Path) -> None:
    """A row alone is as fast without: ONNX Runtime packs as it goes, for each run of several."""
    gains = []
    for number in range(TIMES):
        (kept,) = PreparedModel(
            prepare(model := _product(tmp_path, number), 1).path, model, 1
        ).kept
        assert kept.batch_gain is not None
        assert kept.packs or kept.batch_gain < LEAST_BATCH_GAIN
        gains.append(kept.batch_gain)
        if kept.batch_gain >= LEAST_BATCH_GAIN:
            break
    assert max(gains) >= LEAST_BATCH_GAIN, gains


def _product(folder: Path, number: int) -> Path:
    """A product with weights of its own, so that it has a preparation of its own."""
    weights = np.random.default_rng(number).standard_normal((2048, 2048)).astype(np.float32)
    return save(
        folder / f"product-{number}.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [info("x", "n", 2048)],
        [info("y", "n", 2048)],
        {"w": weights},
    )
