"""Small model entries that the server tests write into repositories of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 18

ANY_CLASS = ' parameters { key: "brisk_max_class" value { string_value: "realtime" } } '
"""Lines of a configuration that let requests ask for each class."""

Shape = Sequence["int | str | None"]


def write_entry(
    repository: Path,
    name: str,
    model: onnx.ModelProto | bytes,
    config: str = 'backend: "brisk"',
) -> Path:
    """Write an entry of ``model``; return its directory."""
    directory = repository / name
    (directory / "1").mkdir(parents=True)
    path = directory / "1" / "model.onnx"
    if isinstance(model, bytes):
        path.write_bytes(model)
    else:
        onnx.save(model, path)
    (directory / "config.pbtxt").write_text(config)
    return directory


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[tuple[str, int, Shape]],
    outputs: Sequence[tuple[str, int, Shape]],
    weights: Sequence[tuple[str, np.ndarray]] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)


def identity(element: int, shape: Shape = ("batch", "n")) -> onnx.ModelProto:
    """Return ``y = x`` for one ONNX element type."""
    return make_model(
        [helper.make_node("Identity", ["x"], ["y"])],
        [("x", element, shape)],
        [("y", element, shape)],
    )


def doubled(shape: Shape = ("batch", 4)) -> onnx.ModelProto:
    """Return ``y = x + x`` and ``z = -x``, float32."""
    return make_model(
        [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])],
        [("x", TensorProto.FLOAT, shape)],
        [("y", TensorProto.FLOAT, shape), ("z", TensorProto.FLOAT, shape)],
    )


def deep(layers: int = 30, width: int = 512, rows: int | str = "batch") -> onnx.ModelProto:
    """A chain of ``layers`` products with Relu between; a request's rows decide how long it runs,
    and where they are fixed, into how many segments it is cut.

    Every product is by the same scaled permutation, so ``y`` equals ``x`` for ``x >= 0``.
    """
    turn = np.roll(np.eye(width, dtype=np.float32), 1, axis=1)
    nodes = []
    value = "x"
    for index in range(layers):
        nodes.append(helper.make_node("MatMul", [value, "turn"], [f"m{index}"]))
        nodes.append(helper.make_node("Relu", [f"m{index}"], [f"r{index}"]))
        value = f"r{index}"
    nodes.append(helper.make_node("Identity", [value], ["y"]))
    shape = (rows, width)
    return make_model(
        nodes,
        [("x", TensorProto.FLOAT, shape)],
        [("y", TensorProto.FLOAT, shape)],
        [("turn", turn)],
    )


def deep_answer(x: np.ndarray, layers: int = 30) -> np.ndarray:
    """Return the answer of ``deep`` for ``x >= 0``."""
    return np.roll(x, layers, axis=1)
