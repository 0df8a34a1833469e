"""Removes copies, and frees reshapes of shape arithmetic at run time."""

from __future__ import annotations

import numpy as np

from brisk.graph.draft import Draft, is_standard
from brisk.graph.files.element_types import element_of_dtype
from brisk.graph.program import Node


def remove_copies(draft: Draft) -> int:
    """Remove nodes that hand their input on; returns how many went."""
    removed = 0
    for node in draft:
        if _is_copy(draft, node) and draft.is_renamable(node.outputs[0]):
            draft.redirect(node.outputs[0], node.inputs[0])
            draft.remove(node)
            removed += 1
    return removed


def _is_copy(draft: Draft, node: Node) -> bool:
    if is_standard(node, "Identity"):
        return True
    if is_standard(node, "Cast"):
        dtype = draft.type_of(node.inputs[0]).dtype
        return dtype is not None and element_of_dtype(dtype) == node.attributes["to"]
    if is_standard(node, "Dropout"):
        training = draft.weights.get(node.input(2), np.array(bool(node.input(2))))
        return not training.any() and not any(map(draft.is_used, node.outputs[1:]))
    return False


def fix_reshapes(draft: Draft) -> int:
    """Replace computed target shapes by constants, where 0 copies a size of the input."""
    fixed = 0
    for node in draft:
        if not is_standard(node, "Reshape") or node.inputs[1] in draft.weights:
            continue
        sizes = _target(draft, node)
        if sizes is not None:
            name = draft.add_weight(np.array(sizes, np.int64), f"{node.outputs[0]}.target")
            inputs = (node.inputs[0], name)
            draft.put(draft.node("Reshape", inputs, node.outputs, node.name, allowzero=0))
            fixed += 1
    return fixed


def _target(draft: Draft, node: Node) -> list[int] | None:
    source, target = draft.type_of(node.inputs[0]).shape, draft.type_of(node.outputs[0]).shape
    if source is None or target is None or 0 in source or 0 in target:
        return None
    joined = draft.maker(node.inputs[1], "Concat")
    stated = () if joined is None or len(joined.inputs) != len(target) else joined.inputs
    sizes: list[int] = []
    for axis, size in enumerate(target):
        if isinstance(size, int):
            sizes.append(size)
        elif size is not None and axis < len(source) and source[axis] == size:
            sizes.append(0)
        elif stated and draft.scalar(stated[axis]) == -1:
            sizes.append(-1)
        else:
            return None
    return sizes
