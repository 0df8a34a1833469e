"""Operators of ONNX Runtime's own set (``com.microsoft``) that standard nodes express.

Models that ONNX Runtime has optimised and saved hold them. Source: ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from brisk.graph.attributes import integer, number
from brisk.graph.canonical.attributes import scalar_like
from brisk.graph.canonical.contributed_quantised import expressed_quantised
from brisk.graph.draft import Draft
from brisk.graph.program import Node
from brisk.graph.rewriting import optional_input

DOMAIN = "com.microsoft"

_Rule: TypeAlias = Callable[[Node, Draft], "list[Node] | None"]


def expressed(node: Node, draft: Draft) -> list[Node] | None:
    """Standard nodes that mean the same as ``node``; None where there are none."""
    rule = _RULES.get(node.operator)
    return expressed_quantised(node, draft) if rule is None else rule(node, draft)


def _added(draft: Draft, nodes: list[Node], one: str, other: str, hint: str) -> str:
    """``one + other``; ``one`` where the other is left out."""
    if not other:
        return one
    result = draft.add_value(hint)
    nodes.append(draft.node("Add", (one, other), (result,)))
    return result


def _gelu(approximate: str) -> _Rule:
    def rule(node: Node, draft: Draft) -> list[Node]:
        nodes: list[Node] = []
        bias = optional_input(node, 1)
        source = _added(draft, nodes, node.inputs[0], bias, f"{node.outputs[0]}.biased")
        gelu = draft.node("Gelu", (source,), node.outputs, node.name, approximate=approximate)
        return [*nodes, gelu]

    return rule


def _quick_gelu(node: Node, draft: Draft) -> list[Node]:
    alpha = number(node, "alpha", 1.702)
    return [draft.node("Swish", node.inputs, node.outputs, node.name, alpha=alpha)]


def _matmul(node: Node, draft: Draft) -> list[Node] | None:
    """``alpha · op(A) op(B)``, where ``op`` may swap the last two axes."""
    nodes: list[Node] = []
    if integer(node, "transBatchA", 0) or integer(node, "transBatchB", 0):
        return None
    target, operands = node.outputs[0], []
    for name, flag in zip(node.inputs, ("transA", "transB"), strict=True):
        array = draft.weights.get(name)
        rank = draft.type_of(name).rank if array is None else array.ndim
        if not integer(node, flag, 0):
            operands.append(name)
            continue
        if rank is None or rank < 2:
            return None
        swapped = draft.add_value(f"{target}.{flag}")
        order = (*range(rank - 2), rank - 1, rank - 2)
        nodes.append(draft.node("Transpose", (name,), (swapped,), perm=order))
        operands.append(swapped)
    alpha = number(node, "alpha", 1.0)
    if alpha == 1.0:
        return [*nodes, draft.node("MatMul", tuple(operands), node.outputs, node.name)]
    factor, casts = scalar_like(draft, node, "alpha", alpha)
    product = draft.add_value(f"{target}.product")
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
    bias = optional_input(node, 4)
    whole = node.outputs[3] if len(node.outputs) > 3 else ""
    whole = whole or draft.add_value(f"{target}.sum")
    first = _added(draft, nodes, node.inputs[0], bias, f"{target}.biased")
    nodes.append(draft.node("Add", (first, node.inputs[1]), (whole,)))
    normal = draft.node(
        "LayerNormalization",
        (whole, node.inputs[2], optional_input(node, 3)),
        (target,),
        node.name,
        axis=-1,
        epsilon=number(node, "epsilon", 1e-12),
    )
    return [*nodes, normal]


_RULES: dict[str, _Rule] = {
    "Gelu": _gelu("none"),
    "BiasGelu": _gelu("none"),
    "FastGelu": _gelu("tanh"),
    "QuickGelu": _quick_gelu,
    "FusedMatMul": _matmul,
    "SkipLayerNormalization": _skip_layer_normalization,
}
