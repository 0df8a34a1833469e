"""Replaces an If whose condition is a constant by the branch it takes."""

from __future__ import annotations

from dataclasses import replace

from brisk.graph.draft import Draft, is_standard
from brisk.graph.program import Node, Program


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
        replace(each.main, inputs=renamed(each.main.inputs), outputs=renamed(each.main.outputs))
        for each in branch.layers
    ]
    for variable, target in zip(branch.outputs, node.outputs, strict=True):
        if target:
            source = names.get(variable.name, variable.name)
            nodes.append(draft.node("Identity", (source,), (target,)))
            draft.types[target] = branch.type_of(variable.name)
    return nodes
