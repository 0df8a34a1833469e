"""Small models of many kinds, to be damaged: a few kilobytes each, all of which are served."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper
from onnx import numpy_helper as numpy_tensors

from support.models.segment_models import info

EXTERNAL_FILE = "weights.bin"
EXTERNAL_BYTES = 8192
node = helper.make_node


def _model(
    nodes: list[NodeProto],
    inputs: list[ValueInfoProto],
    outputs: list[ValueInfoProto],
    weights: Mapping[str, np.ndarray] = {},  # never changed
    **options: object,
) -> ModelProto:
    tensors = [numpy_tensors.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "seed", inputs, outputs, tensors)
    domains = options.pop("domains", {"": 17})
    opsets = [helper.make_opsetid(name, version) for name, version in domains.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **options)


def _convolutions() -> ModelProto:
    rng = np.random.default_rng(0)
    weights = {
        "w0": rng.standard_normal((8, 3, 3, 3)).astype("f4"),
        "w1": rng.standard_normal((16, 8, 3, 3)).astype("f4"),  # 4608 bytes: read in place
        "scale": np.ones(8, "f4"),
        "shift": np.zeros(8, "f4"),
        "shape": np.array([0, -1]),
        "w2": rng.standard_normal((16, 10)).astype("f4"),
    }
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c0", "scale", "shift", "shift", "scale"], ["b0"]),
        node("Relu", ["b0"], ["r0"]),
        node("MaxPool", ["r0"], ["p0"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p0", "w1"], ["c1"], pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", ["c1"], ["g"]),
        node("Reshape", ["g", "shape"], ["f"]),
        node("Gemm", ["f", "w2"], ["z"]),
        node("Softmax", ["z"], ["y"]),
    ]
    return _model(nodes, [info("x", "n", 3, 8, 8)], [info("y", "n", 10)], weights)


def _products() -> ModelProto:
    rng = np.random.default_rng(1)
    weights = {f"w{i}": rng.standard_normal((48, 48)).astype("f4") / 7 for i in range(3)}
    nodes, previous = [], "x"
    for i in range(3):
        nodes += [
            node("MatMul", [previous, f"w{i}"], [f"m{i}"], name=f"product{i}"),
            node("Tanh", [f"m{i}"], [f"t{i}"]),
            node("Add", [previous, f"t{i}"], [f"a{i}"]),
        ]
        previous = f"a{i}"
    nodes.append(node("Concat", ["a0", previous], ["y"], axis=1))
    return _model(nodes, [info("x", "n", 48)], [info("y", "n", 96)], weights)


def _external() -> ModelProto:
    model = _products()
    offset = 0
    for tensor in list(model.graph.initializer)[:2]:
        size = len(tensor.raw_data) // 3
        tensor.dims[:] = [16, 48]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        pairs = {"location": EXTERNAL_FILE, "offset": str(offset), "length": str(size)}
        for key, value in pairs.items():
            tensor.external_data.add(key=key, value=value)
        offset += size
    nodes = [
        node("Gemm", ["x", "w0"], ["m0"], transB=1, name="first"),
        node("Gemm", ["x", "w1"], ["m1"], transB=1, name="second"),
        node("Mul", ["m0", "m1"], ["y"]),
    ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.output[0].CopyFrom(info("y", "n", 16))
    return model


def _bodies() -> ModelProto:
    def branch(operator: str) -> GraphProto:
        inner = node(operator, ["a", "w"], [f"{operator}_out"])
        return helper.make_graph([inner], operator, [], [info(f"{operator}_out", "n", 4)])

    loop = helper.make_graph(
        [
            node("Identity", ["going"], ["still"]),
            node("Add", ["carried", "w"], ["next"]),
            node("Mul", ["next", "a"], ["seen"]),
        ],
        "loop",
        [info("i", kind=TensorProto.INT64), info("going", kind=TensorProto.BOOL), info("carried")],
        [info("still", kind=TensorProto.BOOL), info("next"), info("seen")],
    )
    for value in (*loop.input[2:], *loop.output[1:]):
        value.type.tensor_type.ClearField("shape")
    nodes = [
        node("Neg", ["x"], ["a"]),
        node("ReduceSum", ["a"], ["total"], keepdims=0),
        node("Greater", ["total", "limit"], ["is_large"]),
        node("If", ["is_large"], ["b"], then_branch=branch("Add"), else_branch=branch("Sub")),
        node("Loop", ["count", "", "b"], ["c", "all"], body=loop),
        node("ReduceMean", ["all"], ["mean"], axes=[0], keepdims=0),
        node("Add", ["c", "mean"], ["y"]),
    ]
    weights = {"w": np.ones(4, "f4"), "limit": np.array(1, "f4"), "count": np.array(3)}
    return _model(nodes, [info("x", "n", 4)], [info("y", "n", 4)], weights)


def _constants_and_texts() -> ModelProto:
    nodes = [
        node("Constant", [], ["half"], value=numpy_tensors.from_array(np.full(4, 0.5, "f4"))),
        node("Constant", [], ["two"], value_float=2.0),
        node("Constant", [], ["three"], value_ints=[3, 1]),
        node("Mul", ["x", "half"], ["a"]),
        node("Pow", ["a", "two"], ["b"]),
        node("Tile", ["b", "three"], ["y"]),
        node("Identity", ["s"], ["t"]),
    ]
    inputs = [info("x", "n", 4), info("s", "n", kind=TensorProto.STRING)]
    return _model(nodes, inputs, [info("y", "m", 4), info("t", "n", kind=TensorProto.STRING)])


def _quantised() -> ModelProto:
    rng = np.random.default_rng(2)
    weights = {
        "w": rng.integers(-100, 100, (64, 64)).astype("i1"),
        "one": np.array(0.1, "f4"),
        "zero": np.array(3, "u1"),
        "none": np.array(0, "i1"),
        "half": rng.standard_normal((64, 64)).astype("f2"),
    }
    nodes = [
        node("QuantizeLinear", ["x", "one", "zero"], ["q"]),
        node("MatMulInteger", ["q", "w", "zero", "none"], ["i"]),
        node("Cast", ["i"], ["f"], to=TensorProto.FLOAT16),
        node("MatMul", ["f", "half"], ["h"]),
        node("Cast", ["h"], ["g"], to=TensorProto.FLOAT),
        node("Div", ["g", "one"], ["y"]),
        node("ArgMax", ["g"], ["best"], axis=1),
    ]
    outputs = [info("y", "n", 64), info("best", "n", 1, kind=TensorProto.INT64)]
    return _model(nodes, [info("x", "n", 64)], outputs, weights)


def _integers_and_indices() -> ModelProto:
    weights = {"table": np.arange(1200, dtype="f4").reshape(100, 12), "seven": np.array(7)}
    nodes = [
        node("Mod", ["ids", "seven"], ["left"]),
        node("Gather", ["table", "left"], ["rows"]),
        node("Div", ["ids", "seven"], ["parts"]),
        node("ReduceMax", ["rows"], ["most"], axes=[2], keepdims=1),
        node("Sub", ["rows", "most"], ["low"]),
        node("Transpose", ["low"], ["turned"], perm=[0, 2, 1]),
        node("Slice", ["turned", "seven_", "ten_", "axis_"], ["y"]),
    ]
    weights |= {"seven_": np.array([0]), "ten_": np.array([10]), "axis_": np.array([1])}
    inputs = [info("ids", "n", "l", kind=TensorProto.INT64)]
    outputs = [info("y", "n", "k", "l"), info("parts", "n", "l", kind=TensorProto.INT64)]
    return _model(nodes, inputs, outputs, weights)


def _functions() -> ModelProto:
    body = [node("Mul", ["v", "v"], ["square"]), node("Add", ["square", "v"], ["out"])]
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("local", "Grow", ["v"], ["out"], body, opsets)
    nodes = [
        node("Grow", ["x"], ["a"], domain="local"),
        node("FusedMatMul", ["a", "w"], ["b"], domain="com.microsoft", alpha=0.5),
        node("Gelu", ["b"], ["y"], domain="com.microsoft"),
    ]
    return _model(
        nodes,
        [info("x", "n", 8)],
        [info("y", "n", 8)],
        {"w": np.eye(8, dtype="f4")},
        domains={"": 17, "local": 1, "com.microsoft": 1},
        functions=[function],
    )


def seed_models() -> dict[str, ModelProto]:
    """By name. ``external`` reads the first bytes of ``EXTERNAL_FILE``."""
    made = {
        "convolutions": _convolutions(),
        "products": _products(),
        "external": _external(),
        "bodies": _bodies(),
        "constants": _constants_and_texts(),
        "quantised": _quantised(),
        "indices": _integers_and_indices(),
        "functions": _functions(),
    }
    for model in made.values():
        if model is not made["external"]:  # whose file is elsewhere
            onnx.checker.check_model(model)
    return made
