"""The always-applicable solution: any layer by its operator's definition, on ``onnx.reference``.

Slow, complete and right: it is the oracle of every tuned solution, and what serves operators
that have none. Computes with numpy on the CPU whatever the device; values are moved both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from brisk.errors import UnsupportedOperatorError
from brisk.graph.files.proto import to_node_proto
from brisk.graph.program import Node
from brisk.solutions.base import Kernel, LoadBody, Problem, Solution, dynamic_operands
from brisk.solutions.values import Value, from_numpy, to_numpy


class Reference(Solution):
    """Runs ``layer.main``."""

    name = "reference"

    def check(self, problem: Problem) -> str | None:
        node = problem.layer.main
        if onnx.defs.has(node.operator, node.domain):
            return None
        return f"{node.describe()} is no standard ONNX operator"

    def load(self, problem: Problem, load_body: LoadBody) -> Kernel:
        evaluator = _evaluator(problem.layer.main)
        constants = {
            operand.name: operand.constant
            for operand in (*problem.operands, *problem.captures)
            if operand is not None and operand.constant is not None
        }
        names = [operand.name for operand in dynamic_operands(problem)]
        outputs = problem.layer.outputs

        def kernel(*values: Value) -> Sequence[Value]:
            given: dict[str, Any] = dict(constants)
            for name, value in zip(names, values, strict=True):
                given[name] = to_numpy(value)
            made = evaluator.run(None, given)
            return [
                from_numpy(value, problem.device) if name else None
                for name, value in zip(outputs, made, strict=True)
            ]

        return kernel


def _evaluator(node: Node) -> Any:
    """An evaluator of one node, fed with all values it reads, captures included, by name.

    Its graph declares no inputs, so that an operator defined by a function of its input types
    finds them at each run.
    """
    from onnx.reference import ReferenceEvaluator  # 60 ms, paid by a runtime before any load

    graph = onnx.GraphProto(name="node", node=[to_node_proto(node)])
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.outputs)
    versions = {"": onnx.defs.onnx_opset_version(), **_operator_sets(node)}
    try:
        return ReferenceEvaluator(graph, opsets=versions)
    except NotImplementedError as error:
        raise UnsupportedOperatorError(f"{node.describe()}: {error}") from error


def _operator_sets(node: Node) -> dict[str, int]:
    """The version of each domain that ``node`` and its bodies were written for."""
    versions: dict[str, int] = {}
    for body in node.bodies:
        for layer in body.layers:
            versions.update(_operator_sets(layer.main))
    return {**versions, node.domain: node.version}
