"""Executes a program by its layers' oracle nodes, one by one, on ``onnx.reference``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from brisk.graph.files.proto import operator_sets, to_node_proto
from brisk.graph.lifetimes import check_integrity
from brisk.graph.program import Epilogue, Layer, Node, Program
from brisk.graph.reader import build_program


def evaluate(program: Program, inputs: Mapping[str, Any]) -> list[Any]:
    """The outputs of ``program`` in order; values are freed by the last-use table."""
    check_integrity(program)
    defaults = [variable.name for variable in program.inputs if variable.optional]
    values = {**{name: program.weights[name] for name in defaults}, **inputs}
    for layer, dead in zip(program.layers, program.last_use, strict=True):
        known = {**program.weights, **values}
        local = {name: known[name] for name in layer.operands if name}
        local.update(zip(layer.outputs, _run(layer.nodes, local, layer), strict=True))
        values.update({name: local[name] for name in layer.outputs if name})
        for name in dead:
            del values[name]
    return [values[variable.name] for variable in program.outputs]


def _run(nodes: tuple[Node, ...], values: dict[str, Any], layer: Layer) -> list[Any]:
    for node in nodes:
        graph = onnx.GraphProto(name="node", node=[to_node_proto(node)])
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.outputs if name)
        versions = {"": onnx.defs.onnx_opset_version(), node.domain: node.version}
        model = onnx.ModelProto(
            graph=graph, ir_version=onnx.IR_VERSION, opset_import=operator_sets(versions)
        )
        results = ReferenceEvaluator(model).run(None, values)
        names = [name for name in node.outputs if name]
        values.update(zip(names, results, strict=True))
    return [values.get(name) for name in layer.outputs]


def expected(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> list[Any]:
    """The outputs of ``model`` as it was, by the operators' definition."""
    return ReferenceEvaluator(model).run(None, dict(inputs))


def checked(
    made: onnx.ModelProto, inputs: dict[str, Any], wanted: list[str], tolerance: float = 1e-5
) -> Program:
    """The program of ``made``, which has the ``wanted`` layers and computes the same."""
    program = build_program(made)
    for ours, theirs in zip(evaluate(program, inputs), expected(made, inputs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
    assert operators(program) == wanted
    return program


def operators(program: Program) -> list[str]:
    """Main operators in order, with their epilogues: ``Conv+Add+Relu``."""
    return [
        "+".join([layer.main.operator, *(step.operator for step in layer.epilogue)])
        for layer in program.layers
    ]


def apply_epilogue(step: Epilogue, value: np.ndarray, operand: np.ndarray | None) -> np.ndarray:
    """One step by its definition, to check records against oracle nodes."""
    if step.operator == "Add":
        assert operand is not None
        return value + operand
    if step.operator == "Silu":
        return value / (1 + np.exp(-value))
    if step.operator == "Clip":
        low, high = (step.attributes.get(name) for name in ("min", "max"))
        assert isinstance(low, float)
        assert isinstance(high, float)
        return np.clip(value, low, high)
    node = onnx.helper.make_node(step.operator, ["x"], ["y"], **step.attributes)
    return ReferenceEvaluator(node).run(None, {"x": value})[0]
