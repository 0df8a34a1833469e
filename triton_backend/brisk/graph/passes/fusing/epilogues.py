"""Moves element-wise steps behind the operator whose result they change.

A residual may be computed after the operator but before its addition, so the fused layer
stands where its last step stood.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from brisk.graph.draft import Draft
from brisk.graph.fusions import DOMAIN, DYNAMIC_QUANTIZED_LINEAR, LINEAR, fused
from brisk.graph.program import Attribute, Epilogue, Layer, Node
from brisk.graph.rewriting import Rewriter, optional_input, plain

_HOSTS = frozenset(
    {
        *(("", operator) for operator in ("Conv", "ConvTranspose", "Gemm", "MatMul")),
        *((DOMAIN, operator) for operator in (LINEAR, DYNAMIC_QUANTIZED_LINEAR)),
    }
)
_ACTIVATIONS = frozenset(
    {
        *("Relu", "Clip", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "LeakyRelu", "Gelu"),
        *("Elu", "Swish"),
    }
)


_StepOf: TypeAlias = "Callable[[Rewriter, Node, str], Epilogue | None]"


def fuse_epilogues(draft: Draft) -> int:
    """At most one residual, then at most one activation, then constant scalars."""
    graph = Rewriter(draft)
    for layer in graph:
        if (layer.main.domain, layer.main.operator) not in _HOSTS or layer.epilogue:
            continue
        if draft.type_of(layer.outputs[0]).dtype not in ("float32", "float16", "bfloat16"):
            continue
        grown = _extend(graph, layer, _addition)
        grown = _extend(graph, grown, _activation)
        while (longer := _extend(graph, grown, _scalar)) is not grown:
            grown = longer
    return graph.commit()


def _extend(graph: Rewriter, layer: Layer, step_of: _StepOf) -> Layer:
    """``layer`` with the step that its only reader applies; ``layer`` itself if there is none."""
    value = layer.outputs[0]
    reader = graph.sole_reader(value)
    if reader is None or reader.epilogue or len(layer.outputs) != 1 or len(reader.outputs) != 1:
        return layer
    step = step_of(graph, reader.main, value)
    if step is None:
        return layer
    main = layer.main
    grown = Node(
        main.operator,
        main.inputs,
        reader.outputs,
        main.attributes,
        main.domain,
        main.version,
        main.name,
    )
    return graph.fuse(reader, [layer, reader], grown, (*layer.epilogue, step)) or layer


def _addition(graph: Rewriter, node: Node, value: str) -> Epilogue | None:
    """A residual of exactly the result's shape."""
    if node.domain or node.operator != "Add":
        return None
    first = node.inputs[1] == value
    other = node.inputs[0 if first else 1]
    mine, theirs = graph.draft.type_of(value), graph.draft.type_of(other)
    if mine.shape is None or None in mine.shape or mine != theirs:
        return None
    return Epilogue("Add", {}, other, first)


def _scalar(graph: Rewriter, node: Node, value: str) -> Epilogue | None:
    """A factor or summand of one element, as mobile networks learn them."""
    if node.domain or node.operator not in ("Add", "Mul"):
        return None
    first = node.inputs[1] == value
    other = node.inputs[0 if first else 1]
    array, mine = graph.constant(other), graph.draft.type_of(value)
    if array is None or array.size != 1 or mine.rank is None or array.ndim > mine.rank:
        return None
    return Epilogue(node.operator, {}, other, first)


def _activation(graph: Rewriter, node: Node, value: str) -> Epilogue | None:
    operator = node.operator
    if node.domain or operator not in _ACTIVATIONS or node.inputs[0] != value:
        return None
    if operator == "Clip":
        return _clip(graph, node)
    if operator == "Swish":
        alpha = node.attributes.get("alpha", 1.0)
        return Epilogue("Silu") if alpha == 1.0 else None
    return Epilogue(operator, dict(node.attributes))


def _clip(graph: Rewriter, node: Node) -> Epilogue | None:
    """Bounds become the attributes ``min`` and ``max``; one left out is absent."""
    attributes: dict[str, Attribute] = {}
    for place, bound in ((1, "min"), (2, "max")):
        name = optional_input(node, place)
        if not name:
            continue
        scalar = graph.scalar(name)
        if scalar is None:
            return None
        attributes[bound] = scalar
    return Epilogue("Clip", attributes)


# MatMul with constant weights, and the bias added behind it, as one Linear.

_FLOATS = ("float32", "float16", "bfloat16", "float64")


def fuse_linear(draft: Draft) -> int:
    graph = Rewriter(draft)
    for layer in graph:
        node = plain(layer)
        if node is None or node.operator != "MatMul":
            continue
        source, weight = draft.type_of(node.inputs[0]), graph.constant(node.inputs[1])
        if weight is None or weight.ndim != 2 or source.dtype not in _FLOATS:
            continue
        if source.rank is None or source.rank < 2:
            continue
        adder, bias = _bias(graph, layer, node, weight.shape[1])
        inputs = (*node.inputs, bias) if bias else node.inputs
        if adder is None:
            main = fused(LINEAR, inputs, node.outputs, node.name)
            graph.fuse(layer, [layer], main)
        else:
            main = fused(LINEAR, inputs, adder.outputs, node.name or adder.name)
            graph.fuse(adder, [layer, adder], main)
    return graph.commit()


def _bias(graph: Rewriter, layer: Layer, node: Node, size: int) -> tuple[Layer | None, str]:
    """The layer that adds a constant ``[size]`` to the product, and the constant's name."""
    adder = graph.sole_reader(node.outputs[0])
    add = None if adder is None else plain(adder)
    if adder is None or add is None or add.operator != "Add":
        return None, ""
    for name in add.inputs:
        array = graph.constant(name)
        if array is not None and array.shape == (size,):
            return adder, name
    return None, ""
