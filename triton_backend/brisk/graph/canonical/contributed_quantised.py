"""ONNX Runtime's element-wise and pooling operators on quantised tensors, by their definition.

Each is the float operator between DequantizeLinear and QuantizeLinear. Its inputs are one or two
groups of tensor, scale and zero point, then scale and zero point of the result.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto

from brisk.graph.attributes import integer
from brisk.graph.draft import Draft
from brisk.graph.program import Node
from brisk.graph.rewriting import optional_input


@dataclass(frozen=True, slots=True)
class _Float:
    """The float operator, its number of tensors, and the attributes that it takes over."""

    operator: str
    tensors: int = 1
    attributes: tuple[str, ...] = ()


_POOLING = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")

_FLOATS = {
    "QLinearAdd": _Float("Add", 2),
    "QLinearMul": _Float("Mul", 2),
    "QLinearSigmoid": _Float("Sigmoid"),
    "QLinearLeakyRelu": _Float("LeakyRelu", 1, ("alpha",)),
    "QLinearGlobalAveragePool": _Float("GlobalAveragePool"),
    "QLinearAveragePool": _Float("AveragePool", 1, _POOLING),
}


def expressed_quantised(node: Node, draft: Draft) -> list[Node] | None:
    """Standard nodes that mean the same as ``node``; None where there are none."""
    if node.operator == "QGemm":
        return _gemm(node, draft)
    known = _FLOATS.get(node.operator)
    if known is None or integer(node, "channels_last", 0):
        return None
    target = node.outputs[0]
    nodes: list[Node] = []
    operands: list[str] = []
    for place in range(known.tensors):
        group = tuple(optional_input(node, 3 * place + part) for part in range(3))
        operands.append(draft.add_value(f"{target}.operand"))
        nodes.append(draft.node("DequantizeLinear", group, (operands[-1],)))
    result = draft.add_value(f"{target}.float")
    kept = {name: node.attributes[name] for name in known.attributes if name in node.attributes}
    nodes.append(draft.node(known.operator, tuple(operands), (result,), node.name, **kept))
    scale, zero_point = (optional_input(node, 3 * known.tensors + part) for part in range(2))
    nodes.append(draft.node("QuantizeLinear", (result, scale, zero_point), (target,)))
    return nodes


def _gemm(node: Node, draft: Draft) -> list[Node]:
    """``alpha · A B + C``, where C is int32 in units of both scales; float without a scale."""
    target = node.outputs[0]
    left, right, units, bias, result = (
        draft.add_value(f"{target}.{part}") for part in ("a", "b", "units", "c", "float")
    )
    columns = 0 if integer(node, "transB", 0) else 1
    nodes = [
        draft.node("DequantizeLinear", node.inputs[:3], (left,)),
        draft.node("DequantizeLinear", node.inputs[3:6], (right,), axis=columns),
    ]
    operands = [left, right]
    if optional_input(node, 6):
        floats = draft.add_value(f"{target}.c.float")
        nodes += [
            draft.node("Mul", (node.inputs[1], node.inputs[4]), (units,)),
            draft.node("Cast", (node.inputs[6],), (floats,), to=TensorProto.FLOAT),
            draft.node("Mul", (floats, units), (bias,)),
        ]
        operands.append(bias)
    scale = optional_input(node, 7)
    kept = {
        name: node.attributes[name]
        for name in ("alpha", "transA", "transB")
        if name in node.attributes
    }
    outputs = (result,) if scale else node.outputs
    nodes.append(draft.node("Gemm", tuple(operands), outputs, node.name, **kept))
    if scale:
        group = (result, scale, optional_input(node, 8))
        nodes.append(draft.node("QuantizeLinear", group, (target,)))
    return nodes
