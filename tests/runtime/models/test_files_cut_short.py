"""A model's file that is written to or cut short behind its load, in place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from brisk.protocol.runtime_paths import RuntimePaths
from support.models.segment_models import info, save
from support.open_files import skip_without_leases
from support.runtime.runtime_process import describe, infer, opened, worker_of

pytestmark = [pytest.mark.timing, pytest.mark.beside]

WIDTH = 1500
ROWS = np.ones((1, WIDTH), np.float32)


def large_model(path: Path) -> np.ndarray:
    """``y = x w``; its weights, 9 MB that are read in place."""
    weights = np.random.default_rng(1).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    save(path, [node], [info("x", "n", WIDTH)], [info("y", "n", WIDTH)], {"w": weights})
    return weights


@pytest.mark.parametrize(
    "harm", ["open(path, 'wb')", "open(path, 'r+b').write(bytes(10_000_000))"], ids=["cut", "over"]
)
def test_a_model_whose_file_is_spoiled_behind_its_load_answers_as_before(
    place: RuntimePaths, tmp_path: Path, harm: str
) -> None:
    skip_without_leases(tmp_path)
    path = tmp_path / "large.onnx"
    weights = large_model(path)
    with opened(place, describe(path)) as connection:
        worker = worker_of(place)
        script = f"path = {str(path)!r}; {harm}"
        subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
        for _ in range(5):
            np.testing.assert_allclose(infer(connection, ROWS), ROWS @ weights, 1e-3, 1e-4)
        assert worker_of(place) == worker
