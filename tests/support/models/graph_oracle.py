"""Executes a program layer by layer on ``onnx.reference``, and checks that it holds together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from brisk.graph.files.proto import to_node_proto
from brisk.graph.program import ATTENTION, Node, Program
from brisk.graph.reader import build_program


def evaluate(program: Program, inputs: Mapping[str, Any]) -> list[Any]:
    """The outputs of ``program`` in order; values are freed by the last-use table."""
    check_integrity(program)
    defaults = [variable.name for variable in program.inputs if variable.optional]
    values = {**{name: program.weights[name] for name in defaults}, **inputs}
    for layer, dead in zip(program.layers, program.last_use, strict=True):
        known = {**program.weights, **values}
        given = {name: known[name] for name in layer.operands if name}
        values.update(run_node(layer, given))
        for name in dead:
            del values[name]
    known = {**program.weights, **values}
    return [known[variable.name] for variable in program.outputs]


def run_node(node: Node, values: Mapping[str, Any]) -> dict[str, Any]:
    """What ``node`` makes of ``values``, by name."""
    if (node.domain, node.operator) == ATTENTION:
        return {node.outputs[0]: _attention(node, *(values[name] for name in node.inputs))}
    graph = onnx.GraphProto(name="node", node=[to_node_proto(node)])
    names = [name for name in node.outputs if name]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    versions = {"": onnx.defs.onnx_opset_version(), node.domain: node.version}
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in versions.items()]
    model = onnx.ModelProto(graph=graph, ir_version=onnx.IR_VERSION, opset_import=opsets)
    return dict(zip(names, ReferenceEvaluator(model).run(None, dict(values)), strict=True))


def _attention(
    node: Node, query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: Any = 0
) -> np.ndarray:
    scale, zeroes = node.attributes["scale"], node.attributes["zero_masked_rows"]
    scores = query @ key * np.float32(scale) + mask  # type: ignore[arg-type]  # a number
    with np.errstate(invalid="ignore"):  # where all of a row is masked
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        weights = powers / powers.sum(-1, keepdims=True)
    result: np.ndarray = (np.where(np.isnan(weights), 0, weights) if zeroes else weights) @ value
    return result.astype(query.dtype)


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
    return [layer.operator for layer in program.layers]


def check_integrity(program: Program) -> None:
    """Raise AssertionError where ``program`` breaks a promise of its records.

    Every operand is defined before its layer, every value once; the last-use table frees each
    value once and none too early; bodies are checked too.
    """
    outer = set(program.captures)
    inputs = {variable.name for variable in program.inputs}
    defined = inputs | set(program.weights) | outer
    assert len(program.last_use) == len(program.layers), "a last-use entry for every layer"
    alive = set(defined)
    for index, layer in enumerate(program.layers):
        for name in layer.operands:
            assert not name or name in defined, f"layer {layer.label} reads undefined '{name}'"
            assert not name or name in alive, f"layer {layer.label} reads freed '{name}'"
        for name in layer.outputs:
            assert not name or name not in defined, f"'{name}' is defined twice"
            defined.add(name)
            alive.add(name)
        for name in program.last_use[index]:
            assert name in alive, f"'{name}' is freed twice"
            assert name in inputs or name not in program.weights, f"weight '{name}' is freed"
            assert name not in outer, f"captured '{name}' is freed"
            alive.discard(name)
        _check_bodies(layer)
    outputs = [variable.name for variable in program.outputs]
    for name in outputs:
        assert name in alive, f"output '{name}' does not outlive the program"


def _check_bodies(layer: Node) -> None:
    for body in layer.bodies:
        check_integrity(body)
        missing = set(body.captures) - set(layer.captures)
        assert not missing, f"layer {layer.label} does not list captures {missing}"
