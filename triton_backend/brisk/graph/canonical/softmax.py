"""Softmax and its kin before opset 13, which see their input as a matrix split at ``axis``."""

from __future__ import annotations

from brisk.graph.attributes import integer
from brisk.graph.canonical.rules import below, upgraded
from brisk.graph.draft import Draft
from brisk.graph.program import Node


@below(13, "Softmax", "LogSoftmax", "Hardmax")
def matrix_softmax(node: Node, draft: Draft) -> list[Node]:
    """One axis where the others behind it have size 1, else through an explicit matrix."""
    axis = integer(node, "axis", 1)
    if axis == -1:
        return [upgraded(node, *node.inputs, axis=-1)]
    shape = draft.type_of(node.inputs[0]).shape
    if shape is not None:
        axis = axis + len(shape) if axis < 0 else axis
        wide = [place for place in range(axis, len(shape)) if shape[place] != 1]
        if len(wide) <= 1 and axis < len(shape):
            return [upgraded(node, *node.inputs, axis=wide[0] if wide else axis)]
    (source,), (target,) = node.inputs, node.outputs
    size = draft.add_value(f"{target}.shape")
    matrix = draft.add_value(f"{target}.matrix")
    result = draft.add_value(f"{target}.rows")
    return [
        draft.node("Shape", (source,), (size,)),
        draft.node("Flatten", (source,), (matrix,), axis=axis),
        draft.node(node.operator, (matrix,), (result,), node.name, axis=1),
        draft.node("Reshape", (result, size), (target,), allowzero=1),
    ]
