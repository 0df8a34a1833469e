"""A model that is quick to run and long to load."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import onnx
from onnx import TensorProto, helper


def long_to_load(path: Path, layers: int = 800) -> Path:
    """Quick to run, long to plan: every softmax over four values is a layer."""
    names = ["x", *(f"v{number}" for number in range(1, layers)), "y"]
    nodes = [
        helper.make_node("Softmax", [source], [result], axis=-1)
        for source, result in pairwise(names)
    ]
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4])] for name in ("x", "y")
    ]
    graph = helper.make_graph(nodes, path.stem, ends[0], ends[1])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
    return path
