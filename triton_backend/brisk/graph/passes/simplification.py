"""Removes copies and branches that are never taken, and frees reshapes of shape arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from brisk.graph.draft import Draft, is_standard
from brisk.graph.files.element_types import element_of_dtype
from brisk.graph.program import Node, Program


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
    """Free reshapes of computed target shapes; returns how many."""
    fixed = 0
    for node in draft:
        if is_standard(node, "Reshape"):
            made = _turned(draft, node) or _with_fixed_target(draft, node)
            if made is not None:
                draft.put(made)
                fixed += 1
    return fixed


def _turned(draft: Draft, node: Node) -> Node | None:
    """``[b, h, s, d]`` merged to ``[b·h, s, d]``, transposed and split again is one Transpose."""
    swap = draft.maker(node.inputs[0], "Transpose")
    merge = draft.maker(swap.input(0), "Reshape")
    if not merge.operator or swap.integers("perm") != (0, 2, 1):
        return None
    source, merged, target = (
        draft.type_of(name).shape or ()
        for name in (merge.inputs[0], merge.outputs[0], node.outputs[0])
    )
    if len(source) < 3 or None in source or merged[1:] != source[-2:]:
        return None
    if target != (*source[:-2], source[-1], source[-2]):
        return None
    rank = len(source)
    order = (*range(rank - 2), rank - 1, rank - 2)
    return draft.node("Transpose", merge.inputs[:1], node.outputs, node.name, perm=order)


def _with_fixed_target(draft: Draft, node: Node) -> Node | None:
    """The Reshape with a constant as its target, where 0 copies a size of the input."""
    sizes = None if node.inputs[1] in draft.weights else _target(draft, node)
    if sizes is None:
        return None
    name = draft.add_weight(np.array(sizes, np.int64), f"{node.outputs[0]}.target")
    inputs = (node.inputs[0], name)
    return draft.node("Reshape", inputs, node.outputs, node.name, allowzero=0)


def _target(draft: Draft, node: Node) -> list[int] | None:
    source, target = draft.type_of(node.inputs[0]).shape, draft.type_of(node.outputs[0]).shape
    if source is None or target is None or 0 in source or 0 in target:
        return None
    joined = draft.maker(node.inputs[1], "Concat")
    stated = joined.inputs if len(joined.inputs) == len(target) else ()
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


def inline_branches(draft: Draft) -> int:
    """Exporters ask about shapes that turn out to be fixed; returns how many Ifs went."""
    inlined = 0
    for node in draft:
        condition = draft.weights.get(node.inputs[0]) if is_standard(node, "If") else None
        if condition is None or condition.size != 1:
            continue
        branch = node.attributes["then_branch" if condition.item() else "else_branch"]
        assert isinstance(branch, Program)
        spliced = _splice(draft, node, branch)
        if spliced is not None:
            draft.expand(node, spliced)
            inlined += 1
    return inlined


def _splice(draft: Draft, node: Node, branch: Program) -> list[Node] | None:
    """The branch's nodes under names that nothing else has, then copies to the If's outputs.

    None where a body inside the branch captures a name that would have to change.
    """
    shared = {name for name, array in branch.weights.items() if draft.weights.get(name) is array}
    made = [name for layer in branch.layers for name in layer.outputs if name]
    clashing = (draft.taken - shared).intersection([*branch.weights, *made])
    if any(clashing.intersection(layer.captures) for layer in branch.layers):
        return None
    names = {name: draft.fresh(name) for name in clashing}
    draft.taken.update(branch.weights, made)
    for name in (*branch.weights, *made):
        draft.types[names.get(name, name)] = branch.type_of(name)
    for name, array in branch.weights.items():
        draft.weights[names.get(name, name)] = array

    def renamed(given: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(name, name) for name in given)

    nodes = [
        replace(each, inputs=renamed(each.inputs), outputs=renamed(each.outputs))
        for each in branch.layers
    ]
    for variable, target in zip(branch.outputs, node.outputs, strict=True):
        if target:
            source = names.get(variable.name, variable.name)
            nodes.append(draft.node("Identity", (source,), (target,)))
            draft.types[target] = branch.type_of(variable.name)
    return nodes
