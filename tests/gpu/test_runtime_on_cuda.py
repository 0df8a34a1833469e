"""A runtime of its own on the CUDA device, asked through a stub's connection."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from brisk.errors import BriskError
from brisk.protocol.records import LoadModel, Result, TensorForm
from brisk.protocol.runtime_paths import runtime_place
from brisk.stub.runtime_client.client import RuntimeClient
from brisk.stub.runtime_client.pending import OutputReader, Reply

pytestmark = [
    pytest.mark.timing,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


class Answer(Reply):
    def __init__(self) -> None:
        self.ended = threading.Event()
        self.error: BriskError | None = None
        self.y = np.empty(0, np.float32)

    def succeed(self, result: Result, read: OutputReader) -> None:
        (output,), (region,) = result.form.outputs, result.regions
        self.y = np.frombuffer(bytes(read(region)), np.float32).reshape(output.shape)
        self.ended.set()

    def fail(self, error: BriskError) -> None:
        self.error = error
        self.ended.set()


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RuntimeClient]:
    directory = Path(tempfile.mkdtemp(prefix="brisk-"))
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(directory))
    monkeypatch.setenv("BRISK_IDLE_EXIT_S", "1")
    weights = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 3, 16, 16))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("n", 8, 14, 14))],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "model.onnx")
    description = LoadModel("conv", 1, str(tmp_path / "model.onnx"), 0, False, 64, "normal")
    opened = RuntimeClient(runtime_place("cuda:0"), description, lambda level, text: None)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        stack.callback(opened.close)
        opened.open()
        yield opened


def test_a_convolution_on_the_gpu_agrees_with_the_definition(
    connection: RuntimeClient, tmp_path: Path
) -> None:
    from onnx.reference import ReferenceEvaluator

    oracle = ReferenceEvaluator(onnx.load(tmp_path / "model.onnx"))
    for rows in (1, 4, 2):
        x = np.random.default_rng(rows).standard_normal((rows, 3, 16, 16)).astype(np.float32)
        staged = connection.stage((TensorForm("x", "FP32", x.shape),), [x.nbytes])
        connection.memory(staged.regions[0])[:] = x.tobytes()
        answer = Answer()
        connection.submit(staged, ["y"], "normal", None, answer)
        assert answer.ended.wait(60)
        assert answer.error is None
        (expected,) = oracle.run(None, {"x": x})
        np.testing.assert_allclose(answer.y, expected, rtol=1e-3, atol=1e-4)
