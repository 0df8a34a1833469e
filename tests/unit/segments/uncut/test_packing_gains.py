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


def test_a_network_of_matrices_packs_for_its_batches(tmp_path: Path) -> None:
    """A row alone is as fast without: ONNX Runtime packs as it goes, for each run of several."""
    weights = np.random.default_rng(0).standard_normal((2048, 2048)).astype(np.float32)
    model = save(
        tmp_path / "product.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [info("x", "n", 2048)],
        [info("y", "n", 2048)],
        {"w": weights},
    )
    (kept,) = PreparedModel(prepare(model, 1).path, model, 1).kept
    assert kept.batch_gain is not None
    assert kept.batch_gain > LEAST_BATCH_GAIN
    assert kept.packs
