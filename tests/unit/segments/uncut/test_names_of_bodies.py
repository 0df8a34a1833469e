"""Bodies of nodes may have values of their own under names of the main graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from brisk.segments.model.row_tables import LEAST_TABLE_BYTES, row_tables
from brisk.segments.model.sources import BareModel
from brisk.segments.prepared.form import PreparedModel
from brisk.segments.prepared.preparation import prepare
from support.models.segment_models import by_segments, info, whole

pytestmark = pytest.mark.usefixtures("private_cache")

WIDTH = 2048
"""The elements of a float32 that stays in its file."""

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]


def filled(value: float, name: str = "w") -> TensorProto:
    return numpy_helper.from_array(np.full(WIDTH, value, np.float32), name)


def adding(output: str, value: float) -> onnx.GraphProto:
    """A body that adds its own ``w``, of this value, to the ``x`` outside."""
    node = helper.make_node("Add", ["x", "w"], [output])
    return helper.make_graph([node], output, [], [info(output, WIDTH)], [filled(value)])


def negating(output: str) -> onnx.GraphProto:
    node = helper.make_node("Neg", ["x"], [output])
    return helper.make_graph([node], output, [], [info(output, WIDTH)])


def choosing(output: str, then: onnx.GraphProto, otherwise: onnx.GraphProto) -> onnx.NodeProto:
    return helper.make_node("If", ["c"], [output], then_branch=then, else_branch=otherwise)


def with_own_w(node: onnx.NodeProto) -> onnx.ModelProto:
    """y is what the node makes of x and c, plus a ``w`` of ones."""
    last = helper.make_node("Add", [node.output[0], "w"], ["y"])
    return model([node, last], [filled(1)])


def model(
    nodes: list[onnx.NodeProto],
    weights: list[TensorProto],
    functions: list[onnx.FunctionProto] = [],  # noqa: B006  # never changed
) -> onnx.ModelProto:
    inputs = [info("x", WIDTH), info("c", kind=TensorProto.BOOL)]
    graph = helper.make_graph(nodes, "names", inputs, [info("y", WIDTH)], weights)
    return helper.make_model(graph, opset_imports=OPSETS, functions=functions, ir_version=8)


def in_one_branch() -> onnx.ModelProto:
    return with_own_w(choosing("b", negating("t"), adding("e", 20)))


def in_both_branches() -> onnx.ModelProto:
    return with_own_w(choosing("b", adding("t", 10), adding("e", 20)))


def in_a_branch_of_a_branch() -> onnx.ModelProto:
    inner = choosing("i", negating("t"), adding("e", 20))
    outer = helper.make_graph([inner], "outer", [], [info("i", WIDTH)])
    return with_own_w(choosing("b", negating("n"), outer))


def in_a_loop() -> onnx.ModelProto:
    body = adding("sum", 20)
    body.input.extend([info("i", kind=TensorProto.INT64), info("go", kind=TensorProto.BOOL)])
    body.node.add(op_type="Identity", input=["go"], output=["on"])
    body.output.insert(0, info("on", kind=TensorProto.BOOL))
    body.input.append(info("before", WIDTH))
    weights = [
        filled(1),
        numpy_helper.from_array(np.array(1), "once"),
        numpy_helper.from_array(np.array(True), "true"),
    ]
    nodes = [
        helper.make_node("Loop", ["once", "true", "x"], ["b"], body=body),
        helper.make_node("Add", ["b", "w"], ["s"]),
        helper.make_node("Where", ["c", "x", "s"], ["y"]),
    ]
    return model(nodes, weights)


def of_a_function() -> onnx.ModelProto:
    """ONNX Runtime inlines the function in each graph under the same names."""
    constant = helper.make_node("Constant", [], ["k"])
    constant.attribute.add(name="value", ref_attr_name="k", type=onnx.AttributeProto.TENSOR)
    added = helper.make_node("Add", ["a", "k"], ["r"])
    function = helper.make_function(
        "own", "Plus", ["a"], ["r"], [constant, added], OPSETS[:1], ["k"]
    )

    def plus(output: str, value: float) -> onnx.NodeProto:
        return helper.make_node("Plus", ["x"], [output], domain="own", k=filled(value))

    otherwise = helper.make_graph([plus("e", 20)], "else", [], [info("e", WIDTH)])
    nodes = [
        plus("p", 1),
        choosing("b", negating("t"), otherwise),
        helper.make_node("Add", ["b", "p"], ["y"]),
    ]
    return model(nodes, [], [function])


MODELS = (
    in_one_branch,
    in_both_branches,
    in_a_branch_of_a_branch,
    in_a_loop,
    of_a_function,
)


@pytest.mark.parametrize("made", MODELS, ids=lambda made: made.__name__)
def test_a_body_computes_with_its_own_weight_of_a_name_of_the_graph(
    made: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.checker.check_model(made())
    onnx.save(made(), path)
    form = prepare(path, 1).path
    for choice in (True, False):
        inputs = {"x": np.ones(WIDTH, np.float32), "c": np.array(choice)}
        expected = whole(path, inputs)["y"]
        assert choice or expected[0] >= 22
        for warm in (False, True):
            for source in (BareModel(path, 1), PreparedModel(form, path, 1)):
                found = by_segments(source, inputs, warm=warm)["y"]
                np.testing.assert_array_equal(found, expected, f"{source.origin}, {warm=}")


def test_a_table_of_a_body_s_name_is_read_whole() -> None:
    """It is copied when its session is made, so its rows are not left for later."""
    rows = LEAST_TABLE_BYTES // 4 // WIDTH
    table = numpy_helper.from_array(np.zeros((rows, WIDTH), np.float32), "w")
    gathers = helper.make_node("Gather", ["w", "ids"], ["g"])
    inputs = [info("ids", "n", kind=TensorProto.INT64)]

    def names(nodes: list[onnx.NodeProto]) -> list[str]:
        graph = helper.make_graph(nodes, "table", inputs, [info("g", "n", WIDTH)], [table])
        return [each.name for each in row_tables(graph, {"ids"})]

    assert names([gathers]) == ["w"]
    assert names([gathers, choosing("b", negating("t"), negating("e"))]) == ["w"]
    assert names([gathers, choosing("b", negating("t"), adding("e", 20))]) == []
