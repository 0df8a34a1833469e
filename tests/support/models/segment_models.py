"""Models of several segments, and ways to run them by segments and as one ONNX Runtime session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from brisk.runtime.sessions.session import Session
from brisk.segments.frame import run_serially
from brisk.segments.model.sources import BareModel
from brisk.segments.onnxruntime import OrtSession, onnxruntime
from brisk.segments.source import Source
from brisk.segments.starting import open_warm_program, start_segments


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


def chain(
    path: Path, layers: int = 12, width: int = 512, seed: int = 7, **options: object
) -> Path:
    """Products with residual sums, heavy enough to be cut: x, y float32 ``[n, width]``."""
    rng = np.random.default_rng(seed)
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


def classifier(path: Path, seed: int, width: int = 64) -> Path:
    """y: the names of the classes of x float32 ``[n, width]``, text of ``[n]``; ``seed``: of all
    weights."""
    rng = np.random.default_rng(seed)
    weights = {name: rng.standard_normal((width, width)).astype("f4") for name in ("v", "w")}
    weights["names"] = np.array([f"class {number}" for number in range(width)], object)
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("MatMul", ["t", "w"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0),
        helper.make_node("Gather", ["names", "best"], ["y"]),
    ]
    outputs = [info("y", "n", kind=TensorProto.STRING)]
    return save(path, nodes, [info("x", "n", width)], outputs, weights)


def by_segments(
    source: BareModel, inputs: Mapping[str, np.ndarray], *, warm: bool = False
) -> dict[str, np.ndarray]:
    """Return the answers of a frame over the source's segments."""
    starting = start_segments(source)
    starting.table.work("test")
    if warm:
        assert starting.load_warm(lambda: True)
    return run_serially(starting.program, inputs)


def whole(path: Path, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the answers of ONNX Runtime's own session of the file."""
    session = onnxruntime().InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def answer(
    session: Session, inputs: Mapping[str, np.ndarray], names: Sequence[str] = ("y",)
) -> np.ndarray:
    """Return the first of the outputs ``names`` of a run of the session, step by step."""
    frame = session.start(inputs, names)
    while not frame.step():
        pass
    return np.asarray(frame.results()[names[0]])


def source_of(path: Path) -> BareModel:
    return BareModel(path, 2)


def run_in_turn(
    source: Source, inputs: Mapping[str, np.ndarray], *, warm: bool = False
) -> dict[str, np.ndarray]:
    """Return the answers of the source's segments as it opens them one by one."""

    def open_one(index: int) -> OrtSession:
        return (source.open_warm(index) if warm else None) or source.open(index)

    return run_serially(open_warm_program(source, open_one), inputs)


def scaling(path: Path) -> Path:
    """y = x * scale, which is 3 where nobody gives one; x: float32 [n, 3]."""
    return save(
        path,
        [helper.make_node("Mul", ["x", "scale"], ["y"])],
        [info("x", "n", 3), info("scale", 1)],
        [info("y", "n", 3)],
        {"scale": np.array([3.0], np.float32)},
    )
