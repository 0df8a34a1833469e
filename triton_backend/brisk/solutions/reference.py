"""The always-applicable family: any layer by the operators' definition, on ``onnx.reference``.

Slow, complete and right: it is the oracle of every tuned solution, and what serves operators
that have none. Computes with numpy on the CPU whatever the device; values are moved both ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import torch

from brisk.errors import UnsupportedOperatorError
from brisk.graph.program import Node
from brisk.solutions.base import (
    APPLIES,
    Applicability,
    Kernel,
    LoadContext,
    Problem,
    Solution,
    Value,
    refused,
)
from brisk.solutions.onnx_nodes import node_proto, operator_sets
from brisk.solutions.problem import dynamic_operands
from brisk.solutions.values import from_numpy, to_numpy


class Reference(Solution):
    """Runs ``layer.main``."""

    name = "reference"

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset()

    def check(self, problem: Problem) -> Applicability:
        node = problem.layer.main
        if not onnx.defs.has(node.operator, node.domain):
            return refused(f"{node.describe()} is no standard ONNX operator")
        return APPLIES

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        evaluator = _evaluator(problem.layer.main)
        operands = (*problem.operands, *problem.captures)
        constants = {
            operand.name: operand.constant
            for operand in operands
            if operand is not None and operand.constant is not None
        }
        names = [operand.name for operand in dynamic_operands(problem)]
        outputs = problem.layer.outputs
        device = context.device

        def kernel(*values: Value) -> Sequence[Value]:
            given: dict[str, Any] = dict(constants)
            for name, value in zip(names, values, strict=True):
                given[name] = to_numpy(value)
            made = evaluator.run(None, given)
            return [
                from_numpy(value, device) if name else None
                for name, value in zip(outputs, made, strict=True)
            ]

        return kernel


def _evaluator(node: Node) -> Any:
    """An evaluator of one node, fed with all values it reads, captures included, by name.

    Its graph declares no inputs, so that an operator defined by a function of its input types
    finds them at each run.
    """
    from onnx.reference import ReferenceEvaluator  # 60 ms, paid by a runtime before any load

    proto = node_proto(node)
    versions = operator_sets((node,))
    versions.setdefault("", onnx.defs.onnx_opset_version())
    graph = onnx.GraphProto(name="node", node=[proto])
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.outputs)
    try:
        return ReferenceEvaluator(graph, opsets=versions)
    except NotImplementedError as error:
        raise UnsupportedOperatorError(f"{node.describe()}: {error}") from error


SOLUTIONS: tuple[Solution, ...] = (Reference(),)
