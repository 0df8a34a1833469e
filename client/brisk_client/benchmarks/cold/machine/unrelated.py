"""A small network that has nothing to do with those that are measured.

Each engine starts it once, in the process of the sample and by the means that are measured, so
that no engine's first start of all is compared with another's second.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIDE, CLASSES = 32, 16


def write_unrelated(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Write it into ``folder``; the file, and inputs for it."""
    random = np.random.default_rng(7)
    shapes = {
        "stem": (16, 3, 3, 3),
        "scale": (16,),
        "shift": (16,),
        "mean": (16,),
        "spread": (16,),
        "mix": (32, 16, 1, 1),
        "wide": (32, 64),
        "out": (64, CLASSES),
    }
    weights = [
        numpy_helper.from_array(np.abs(random.standard_normal(shape)).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "stem"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "scale", "shift", "mean", "spread"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("MaxPool", ["c"], ["d"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["d", "mix"], ["e"]),
        helper.make_node("GlobalAveragePool", ["e"], ["f"]),
        helper.make_node("Flatten", ["f"], ["g"]),
        helper.make_node("MatMul", ["g", "wide"], ["h"]),
        helper.make_node("Sigmoid", ["h"], ["i"]),
        helper.make_node("Gemm", ["i", "out"], ["j"]),
        helper.make_node("Softmax", ["j"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "unrelated",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, CLASSES])],
        weights,
    )
    opsets = [helper.make_opsetid("", 17)]
    file = folder / "unrelated.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), file)
    return file, {"x": random.standard_normal((1, 3, SIDE, SIDE)).astype(np.float32)}
