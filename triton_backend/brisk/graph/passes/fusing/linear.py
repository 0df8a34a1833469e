"""MatMul with constant weights, and the bias added behind it, as one Linear."""

from __future__ import annotations

from brisk.graph.draft import Draft
from brisk.graph.fusions import LINEAR, fused
from brisk.graph.program import Layer, Node
from brisk.graph.rewriting import Rewriter, plain

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
