"""Removes layers that hand their input on unchanged."""

from __future__ import annotations

import numpy as np

from brisk.graph.attributes import integers
from brisk.graph.draft import Draft, reads_of
from brisk.graph.files.element_types import element_of_dtype
from brisk.graph.program import Layer, Node, ValueType
from brisk.graph.rewriting import Rewriter, optional_input, plain

_NEUTRAL = {"Add": 0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0, "Pow": 1.0}


def remove_noops(draft: Draft) -> int:
    graph = Rewriter(draft)
    for layer in graph:
        node = plain(layer)
        source = None if node is None else _unchanged_input(graph, node)
        if not source:
            continue
        target = layer.outputs[0]
        if graph.is_renamable(target):
            graph.redirect(target, source)
            graph.remove(layer)
        elif len(layer.outputs) == 1:
            graph.absorb(layer, source)
    return graph.commit()


def _unchanged_input(graph: Rewriter, node: Node) -> str | None:
    """The input that equals the node's output; None where it may differ."""
    draft = graph.draft
    if not node.inputs or not node.inputs[0]:
        return None
    source = draft.type_of(node.inputs[0])
    target = draft.type_of(node.outputs[0])
    operator = node.operator
    if operator == "Identity" or (operator == "Concat" and len(node.inputs) == 1):
        return node.inputs[0]
    if operator == "Dropout":
        training = optional_input(node, 2)
        known = graph.constant(training)
        inference = not training or (known is not None and not known.any())
        only_data = all(not name or not graph.readers(name) for name in node.outputs[1:])
        visible = any(name in draft.outputs for name in node.outputs[1:])
        return node.inputs[0] if inference and only_data and not visible else None
    if operator == "Cast":
        same = source.dtype is not None and element_of_dtype(source.dtype) == node.attributes["to"]
        return node.inputs[0] if same else None
    if operator == "CastLike":
        other = draft.type_of(node.inputs[1])
        same = source.dtype is not None and source.dtype == other.dtype
        return node.inputs[0] if same else None
    if operator == "Transpose":
        order = integers(node, "perm")
        return node.inputs[0] if order and order == tuple(range(len(order))) else None
    if operator in ("Reshape", "Expand", "Flatten", "Squeeze", "Unsqueeze"):
        return node.inputs[0] if _same_shape(source, target) else None
    if operator in _NEUTRAL:
        return _neutral(graph, node)
    if operator == "Pad":
        pads = graph.constant(optional_input(node, 1))
        return node.inputs[0] if pads is not None and not pads.any() else None
    return None


def _same_shape(one: ValueType, other: ValueType) -> bool:
    """All sizes known to be equal, by number or by name."""
    return (
        one.shape is not None
        and one.shape == other.shape
        and all(size is not None for size in one.shape)
    )


def _neutral(graph: Rewriter, node: Node) -> str | None:
    """The other operand where one is the operation's neutral element and widens nothing."""
    wanted = _NEUTRAL[node.operator]
    places = (1, 0) if node.operator in ("Add", "Mul") else (1,)
    for place in places:
        array = graph.constant(node.inputs[place])
        other = node.inputs[1 - place]
        if array is None or array.dtype.kind not in "fiu" or array.size > 4096:
            continue
        if array.size and array.item(0) != wanted:
            continue
        target = graph.draft.type_of(node.outputs[0])
        if np.all(array == wanted) and _same_shape(graph.draft.type_of(other), target):
            return other
    return None


# Removes layers whose results nobody reads.


def remove_dead(draft: Draft) -> int:
    """Drop what leads to no output; returns how many layers went."""
    needed = set(draft.outputs)
    kept: list[Layer] = []
    for layer in reversed(draft.layers):
        if any(name in needed for name in layer.outputs):
            kept.append(layer)
            needed.update(reads_of(layer))
    removed = len(draft.layers) - len(kept)
    draft.layers = kept[::-1]
    return removed
