"""Operators of ONNX Runtime's own set (``com.microsoft``) that standard nodes express.

Models that ONNX Runtime has optimised and saved hold them. Source: ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from onnx import TensorProto

from brisk.graph.draft import Draft
from brisk.graph.program import Attribute, Node

DOMAIN = "com.microsoft"

_Rule: TypeAlias = Callable[[Node, Draft], "list[Node] | None"]


def expressed(node: Node, draft: Draft) -> list[Node] | None:
    """Standard nodes that mean the same as ``node``; None where there are none."""
    rule = _RULES.get(node.operator)
    return None if rule is None else rule(node, draft)


def _kept(node: Node, *names: str) -> dict[str, Attribute]:
    return {name: node.attributes[name] for name in names if name in node.attributes}


def _added(draft: Draft, nodes: list[Node], one: str, other: str, hint: str) -> str:
    """``one + other``; ``one`` where the other is left out."""
    if not other:
        return one
    result = draft.fresh(hint)
    nodes.append(draft.node("Add", (one, other), (result,)))
    return result


def _gelu(approximate: str) -> _Rule:
    def rule(node: Node, draft: Draft) -> list[Node]:
        nodes: list[Node] = []
        source = _added(draft, nodes, node.inputs[0], node.input(1), f"{node.outputs[0]}.biased")
        gelu = draft.node("Gelu", (source,), node.outputs, node.name, approximate=approximate)
        return [*nodes, gelu]

    return rule


def _quick_gelu(node: Node, draft: Draft) -> list[Node]:
    alpha = node.number("alpha", 1.702)
    return [draft.node("Swish", node.inputs, node.outputs, node.name, alpha=alpha)]


def _matmul(node: Node, draft: Draft) -> list[Node] | None:
    """``alpha · op(A) op(B)``, where ``op`` may swap the last two axes."""
    nodes: list[Node] = []
    if node.integer("transBatchA", 0) or node.integer("transBatchB", 0):
        return None
    target, operands = node.outputs[0], []
    for name, flag in zip(node.inputs, ("transA", "transB"), strict=True):
        if not node.integer(flag, 0):
            operands.append(name)
            continue
        rank = draft.rank(name)
        if rank is None or rank < 2:
            return None
        operands.append(draft.fresh(f"{target}.{flag}"))
        order = (*range(rank - 2), rank - 1, rank - 2)
        nodes.append(draft.node("Transpose", (name,), (operands[-1],), perm=order))
    alpha = node.number("alpha", 1.0)
    if alpha == 1.0:
        return [*nodes, draft.node("MatMul", tuple(operands), node.outputs, node.name)]
    factor, casts = draft.scalar_like(node, "alpha", alpha)
    product = draft.fresh(f"{target}.product")
    return [
        *nodes,
        *casts,
        draft.node("MatMul", tuple(operands), (product,), node.name),
        draft.node("Mul", (product, factor), node.outputs),
    ]


def _skip_layer_normalization(node: Node, draft: Draft) -> list[Node] | None:
    """``LayerNormalization(x + skip + bias)``; the fourth output is the sum."""
    if any(node.outputs[1:3]):
        return None
    nodes: list[Node] = []
    target = node.outputs[0]
    whole = node.outputs[3] if len(node.outputs) > 3 else ""
    whole = whole or draft.fresh(f"{target}.sum")
    first = _added(draft, nodes, node.inputs[0], node.input(4), f"{target}.biased")
    normal = draft.node(
        "LayerNormalization",
        (whole, node.inputs[2], node.input(3)),
        (target,),
        node.name,
        axis=-1,
        epsilon=node.number("epsilon", 1e-12),
    )
    return [*nodes, draft.node("Add", (first, node.inputs[1]), (whole,)), normal]


# On quantised tensors: the float operator between DequantizeLinear and QuantizeLinear. Inputs are
# groups of tensor, scale and zero point, then scale and zero point of the result.


def _quantised(operator: str, tensors: int = 1, attributes: tuple[str, ...] = ()) -> _Rule:
    def rule(node: Node, draft: Draft) -> list[Node] | None:
        if node.integer("channels_last", 0):
            return None
        target = node.outputs[0]
        nodes: list[Node] = []
        operands: list[str] = []
        for place in range(0, 3 * tensors, 3):
            group = (node.input(place), node.input(place + 1), node.input(place + 2))
            operands.append(draft.fresh(f"{target}.operand"))
            nodes.append(draft.node("DequantizeLinear", group, (operands[-1],)))
        result = draft.fresh(f"{target}.float")
        kept = _kept(node, *attributes)
        nodes.append(draft.node(operator, tuple(operands), (result,), node.name, **kept))
        group = (result, node.input(3 * tensors), node.input(3 * tensors + 1))
        return [*nodes, draft.node("QuantizeLinear", group, (target,))]

    return rule


def _quantised_gemm(node: Node, draft: Draft) -> list[Node]:
    """``alpha · A B + C``, where C is int32 in units of both scales; float without a scale."""
    target = node.outputs[0]
    left, right, units, floats, bias, result = (
        draft.fresh(f"{target}.{part}") for part in ("a", "b", "units", "c.float", "c", "float")
    )
    columns = 0 if node.integer("transB", 0) else 1
    nodes = [
        draft.node("DequantizeLinear", node.inputs[:3], (left,)),
        draft.node("DequantizeLinear", node.inputs[3:6], (right,), axis=columns),
    ]
    operands = [left, right]
    if node.input(6):
        nodes += [
            draft.node("Mul", (node.inputs[1], node.inputs[4]), (units,)),
            draft.node("Cast", (node.inputs[6],), (floats,), to=TensorProto.FLOAT),
            draft.node("Mul", (floats, units), (bias,)),
        ]
        operands.append(bias)
    scale = node.input(7)
    outputs = (result,) if scale else node.outputs
    kept = _kept(node, "alpha", "transA", "transB")
    nodes.append(draft.node("Gemm", tuple(operands), outputs, node.name, **kept))
    if scale:
        nodes.append(draft.node("QuantizeLinear", (result, scale, node.input(8)), (target,)))
    return nodes


_POOLING = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")

_RULES: dict[str, _Rule] = {
    "Gelu": _gelu("none"),
    "BiasGelu": _gelu("none"),
    "FastGelu": _gelu("tanh"),
    "QuickGelu": _quick_gelu,
    "FusedMatMul": _matmul,
    "SkipLayerNormalization": _skip_layer_normalization,
    "QLinearAdd": _quantised("Add", 2),
    "QLinearMul": _quantised("Mul", 2),
    "QLinearSigmoid": _quantised("Sigmoid"),
    "QLinearLeakyRelu": _quantised("LeakyRelu", 1, ("alpha",)),
    "QLinearGlobalAveragePool": _quantised("GlobalAveragePool"),
    "QLinearAveragePool": _quantised("AveragePool", 1, _POOLING),
    "QGemm": _quantised_gemm,
}
