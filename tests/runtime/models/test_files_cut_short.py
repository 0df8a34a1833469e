"""A model's file that is written to or cut short behind its load, in place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from brisk.protocol.runtime_paths import RuntimePaths
from support.open_files import skip_without_leases
from support.runtime.runtime_process import describe, infer, opened, worker_of

pytestmark = [pytest.mark.timing, pytest.mark.beside]

WIDTH = 1500
ROWS = np.ones((1, WIDTH), np.float32)


def large_model(path: Path) -> np.ndarray:
    """``y = x w``; its weights, 9 MB that are read in place."""
    weights = np.random.default_rng(1).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    shape = ["n", WIDTH]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
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
