"""Takes the matrix out of an old Softmax once the shape shows that one axis is normalised.

Canonicalisation writes Softmax of opset 12 and older as Flatten, Softmax, Reshape where the rank
was not known yet; later rounds of inference often find it.
"""

from __future__ import annotations

from dataclasses import replace

from brisk.graph.attributes import integer
from brisk.graph.draft import Draft, layer_of
from brisk.graph.rewriting import Rewriter, plain

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
