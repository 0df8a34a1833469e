"""Runs are ended from another thread, whenever their options are made."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from brisk.segments.frame import RunControl
from brisk.segments.onnxruntime import onnxruntime


@pytest.mark.parametrize("are_made", [False, True], ids=["made later", "made before"])
def test_a_run_that_was_ended_before_it_began_computes_nothing(*, are_made: bool) -> None:
    own = RunControl()
    if are_made:
        own.options(shrinks_arena=False)
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert onnx.checker.check_model(model) is None
    session = onnxruntime().InferenceSession(model.SerializeToString())
    feeds = {"x": np.ones(2, np.float32)}
    own.end()
    with pytest.raises(Exception, match="terminate"):
        session.run(["y"], feeds, own.options(shrinks_arena=False))
    own.renew()
    (y,) = session.run(["y"], feeds, own.options(shrinks_arena=False))
    np.testing.assert_array_equal(y, -feeds["x"])
