"""Requests that run together: one that fails takes no other with it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from brisk.errors import InvalidRequestError
from brisk.protocol.runtime_paths import RuntimePaths
from brisk.stub.runtime_client.client import RuntimeClient
from support.runtime.runtime_process import SLOW_INPUT, Answer, describe, submit

pytestmark = pytest.mark.timing


def lookup_model(path: Path) -> Path:
    """y = table[x] for a batch of indices; one out of range fails when it runs."""
    table = helper.make_tensor("table", TensorProto.FLOAT, [4], [0.0, 10.0, 20.0, 30.0])
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["index"], to=TensorProto.INT64),
            helper.make_node("Gather", ["table", "index"], ["y"]),
        ],
        "lookup",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])],
        [table],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def test_the_bad_request_of_a_joined_run_fails_alone(
    shared_place: RuntimePaths, slow: Path, tmp_path: Path
) -> None:
    lookup = describe(lookup_model(tmp_path / "lookup.onnx"), max_batch_size=8, batching=True)
    blocker = RuntimeClient(shared_place, describe(slow), lambda level, text: None)
    joined = RuntimeClient(shared_place, lookup, lambda level, text: None)
    blocker.open()
    joined.open()
    with contextlib.closing(blocker), contextlib.closing(joined):
        number, _ = submit(blocker, SLOW_INPUT)  # while it runs, the others wait to be joined
        answers: list[Answer] = [
            submit(joined, np.full((1, 1), index, np.float32))[1] for index in (1, 99, 2, 3)
        ]
        blocker.cancel(number)
        good = [answers[position].output().item() for position in (0, 2, 3)]
        bad = answers[1].wait().error
    assert good == [10.0, 20.0, 30.0]
    assert isinstance(bad, InvalidRequestError)
