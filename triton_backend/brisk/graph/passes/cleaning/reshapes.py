"""Frees reshapes of run-time shape arithmetic, and sees transposes through reshapes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from brisk.graph.attributes import integer
from brisk.graph.draft import Draft, layer_of
from brisk.graph.program import Dimension, Layer, Node
from brisk.graph.rewriting import Rewriter, plain
from brisk.graph.symbolic.values import known_elements


def simplify_reshapes(draft: Draft) -> int:
    graph = Rewriter(draft)
    for layer in graph:
        node = plain(layer)
        if node is None or node.operator != "Reshape":
            continue
        if not _fuse_batched_transpose(graph, layer, node):
            _fix_target(graph, layer, node)
    return graph.commit()


def _fix_target(graph: Rewriter, layer: Layer, node: Node) -> None:
    """Replace a computed target shape by a constant one (0 copies a size of the input)."""
    draft = graph.draft
    source, target = draft.type_of(node.inputs[0]).shape, draft.type_of(node.outputs[0]).shape
    if node.inputs[1] in draft.weights or source is None or target is None:
        return
    elements = known_elements(draft, node.inputs[1])
    if elements is None or len(elements) != len(target) or 0 in source or 0 in target:
        return
    sizes: list[int] = []
    for axis, size in enumerate(target):
        if isinstance(size, int):
            sizes.append(size)
        elif axis < len(source) and source[axis] == size:
            sizes.append(0)
        elif elements[axis] == -1:
            sizes.append(-1)
        else:
            return
    name = draft.add_weight(np.array(sizes, np.int64), f"{node.outputs[0]}.target")
    fixed = draft.node("Reshape", (node.inputs[0], name), node.outputs, node.name, allowzero=0)
    graph.replace(layer, layer_of(fixed))


def _fuse_batched_transpose(graph: Rewriter, layer: Layer, node: Node) -> bool:
    """``[b, h, s, d]`` merged to ``[b·h, s, d]``, transposed and split again is one Transpose."""
    draft = graph.draft
    swap = graph.made_by(node.inputs[0], "Transpose")
    merge = None if swap is None else graph.made_by(swap.inputs[0], "Reshape")
    if swap is None or merge is None or swap.attributes.get("perm") != (0, 2, 1):
        return False
    source = draft.type_of(merge.inputs[0]).shape
    merged = draft.type_of(swap.inputs[0]).shape
    target = draft.type_of(node.outputs[0]).shape
    if source is None or merged is None or target is None or len(source) < 3:
        return False
    if not _equal(merged[1:], source[-2:]) or not _equal(
        target, (*source[:-2], source[-1], source[-2])
    ):
        return False
    rank = len(source)
    order = (*range(rank - 2), rank - 1, rank - 2)
    name = node.name
    transposed = draft.node("Transpose", merge.inputs[:1], node.outputs, name, perm=order)
    graph.replace(layer, layer_of(transposed))
    return True


def _equal(one: tuple[Dimension, ...], other: tuple[Dimension, ...]) -> bool:
    return one == other and None not in one


# Takes the matrix out of an old Softmax once the shape shows that one axis is normalised.
#
# Canonicalisation writes Softmax of opset 12 and older as Flatten, Softmax, Reshape where the rank
# was not known yet; later rounds of inference often find it.

_OPERATORS = ("Softmax", "LogSoftmax", "Hardmax")


def simplify_matrix_softmax(draft: Draft) -> int:
    graph = Rewriter(draft)
    for layer in graph:
        node = plain(layer)
        if node is None or node.operator != "Reshape":
            continue
        rows = graph.made_by(node.inputs[0], *_OPERATORS)
        flat = None if rows is None else graph.made_by(rows.inputs[0], "Flatten")
        if rows is None or flat is None or integer(rows, "axis", -1) not in (1, -1):
            continue
        shape = draft.type_of(flat.inputs[0]).shape
        if shape is None or None in shape or shape != draft.type_of(node.outputs[0]).shape:
            continue
        axis = integer(flat, "axis", 1)
        axis = axis + len(shape) if axis < 0 else axis
        wide = [place for place in range(axis, len(shape)) if shape[place] != 1]
        if axis < len(shape) and len(wide) <= 1:
            chosen = wide[0] if wide else axis
            direct = replace(
                rows, inputs=flat.inputs, outputs=node.outputs, attributes={"axis": chosen}
            )
            graph.replace(layer, layer_of(direct))
    return graph.commit()
