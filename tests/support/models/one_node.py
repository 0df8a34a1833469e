"""A model of one node, run on the default catalogue and on the reference solution alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

from brisk.execution.frame import run_serially
from brisk.execution.loading import LoadedProgram, load_program
from brisk.graph.reader import build_program
from brisk.solutions.catalogue import Catalogue, default_catalogue
from brisk.solutions.values import from_numpy, to_numpy

CPU = torch.device("cpu")


def one_node_model(
    operator: str,
    inputs: Sequence[np.ndarray | None],
    attributes: Mapping[str, Any],
    constants: Sequence[int] = (),
    outputs: int = 1,
    opset: int = 21,
) -> onnx.ModelProto:
    """``inputs`` at the positions ``constants`` are initialisers, the others graph inputs.

    Sizes of graph inputs are symbolic, so that nothing is folded or specialised by shape.
    """
    graph = onnx.GraphProto(name=operator)
    names = []
    for position, array in enumerate(inputs):
        names.append("" if array is None else f"x{position}")
        if array is None:
            continue
        if position in constants:
            graph.initializer.append(numpy_helper.from_array(array, f"x{position}"))
        else:
            sizes = [f"d{position}_{axis}" for axis in range(array.ndim)]
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            graph.input.append(helper.make_tensor_value_info(f"x{position}", kind, sizes))
    made = [f"y{index}" for index in range(outputs)]
    graph.node.append(helper.make_node(operator, names, made, **attributes))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return onnx.shape_inference.infer_shapes(model)


def run(
    model: onnx.ModelProto, inputs: Sequence[np.ndarray | None], catalogue: Catalogue
) -> tuple[list[Any], LoadedProgram]:
    loaded = load_program(build_program(model), CPU, catalogue)
    given = {
        f"x{position}": from_numpy(array, CPU)
        for position, array in enumerate(inputs)
        if array is not None and f"x{position}" in {v.name for v in loaded.program.inputs}
    }
    results = run_serially(loaded, given)
    return [to_numpy(results[output.name]) for output in model.graph.output], loaded


def assert_tuned_agrees(
    operator: str,
    inputs: Sequence[np.ndarray | None],
    constants: Sequence[int] = (),
    outputs: int = 1,
    opset: int = 21,
    rtol: float = 1e-5,
    **attributes: Any,
) -> None:
    """The tuned solution is chosen, and gives what the reference does, dtype and shape too."""
    model = one_node_model(operator, inputs, attributes, constants, outputs, opset)
    actual, loaded = run(model, inputs, default_catalogue())
    assert "reference" not in {layer.solution.name for layer in loaded.layers}
    expected, _ = run(model, inputs, {})
    for mine, wanted in zip(actual, expected, strict=True):
        assert mine.dtype == wanted.dtype
        assert mine.shape == wanted.shape
        np.testing.assert_allclose(mine, wanted, rtol=rtol, atol=1e-6)
