"""A real runtime that exchanges the sessions of a model of many segments as it is asked."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from brisk.protocol.runtime_paths import RuntimePaths
from support.models.segment_models import chain, whole
from support.runtime.runtime_process import describe, infer, opened

ROWS = np.random.default_rng(5).standard_normal((3, 512)).astype(np.float32)


def test_answers_before_and_after_the_exchange_are_onnxruntime_s(
    place: RuntimePaths, tmp_path: Path
) -> None:
    path = chain(tmp_path / "model.onnx", layers=40)
    expected = whole(path, {"x": ROWS})["y"]
    with opened(place, describe(path)) as connection:
        until_s = time.monotonic() + 3.0  # the exchange comes after a second at the latest
        count = 0
        while time.monotonic() < until_s:
            np.testing.assert_allclose(infer(connection, ROWS), expected, rtol=1e-3, atol=1e-4)
            count += 1
    assert count > 10
