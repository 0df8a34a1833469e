"""Entries of the smallest models, written for the test that asks."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

Shape = list[int | str | None]


def write_model(
    directory: Path,
    inputs: dict[str, tuple[int, Shape]],
    outputs: dict[str, tuple[int, Shape]],
    version: int = 1,
) -> Path:
    """An entry whose outputs are Identity of its inputs, in order."""
    nodes = [
        helper.make_node("Identity", [source], [target])
        for source, target in zip(inputs, outputs, strict=True)
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()],
    )
    path = directory / str(version) / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return directory


FLOAT_BATCH = (TensorProto.FLOAT, ["batch", 3, "height"])
