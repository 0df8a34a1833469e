"""Models of several segments, and ways to run them by segments and as one ONNX Runtime session."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from brisk.execution.frame import Frame
from brisk.execution.segment_source import SegmentSource
from brisk.execution.timeline import Recorder
from brisk.segments.library import onnxruntime
from brisk.solutions.values import from_numpy

CPU = torch.device("cpu")


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: Mapping[str, np.ndarray] = {},  # never changed
    domains: Mapping[str, int] = {"": 17},
    **options: object,
) -> Path:
    graph = helper.make_graph(
        nodes,
        "test",
        inputs,
        outputs,
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=options.pop("ir", 8))
    onnx.save(model, path, **options)
    return path


def info(name: str, *shape: int | str, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def chain(path: Path, layers: int = 12, width: int = 512, **options: object) -> Path:
    """Products with residual sums, heavy enough to be cut: x, y float32 ``[n, width]``."""
    rng = np.random.default_rng(7)
    nodes, weights, previous = [], {}, "x"
    for layer in range(layers):
        weights[f"w{layer}"] = (rng.standard_normal((width, width)) / width**0.5).astype("f4")
        nodes += [
            helper.make_node("MatMul", [previous, f"w{layer}"], [f"m{layer}"]),
            helper.make_node("Tanh", [f"m{layer}"], [f"t{layer}"]),
            helper.make_node("Add", [previous, f"t{layer}"], [f"a{layer}"]),
        ]
        previous = f"a{layer}"
    nodes.append(helper.make_node("Identity", [previous], ["y"]))
    return save(path, nodes, [info("x", "n", width)], [info("y", "n", width)], weights, **options)


def by_segments(
    source: SegmentSource, inputs: Mapping[str, np.ndarray], *, warm: bool = False
) -> dict[str, np.ndarray]:
    """The answers of a frame over the source's segments."""
    layers = tuple(
        source.load_warm(index) if warm else source.load(index, "test", False)
        for index in range(len(source.segments))
    )
    loaded = source.frame.assemble(CPU, layers)
    frame = Frame(loaded, {name: from_numpy(value, CPU) for name, value in inputs.items()})
    while not frame.step():
        pass
    return {
        name: value.numpy() if isinstance(value, torch.Tensor) else value
        for name, value in frame.results().items()
    }


def whole(path: Path, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The answers of ONNX Runtime's own session of the file."""
    session = onnxruntime().InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def source_of(path: Path) -> SegmentSource:
    return SegmentSource(path, 2, Recorder())
