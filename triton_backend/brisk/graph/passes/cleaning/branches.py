"""Replaces an If whose condition is a constant by the branch it takes."""

from __future__ import annotations

from brisk.graph.draft import Draft, layer_of, rename_reads, rename_result
from brisk.graph.program import Layer, Program


def inline_branches(draft: Draft) -> int:
    """Exporters ask about shapes that turn out to be fixed; returns how many Ifs went."""
    layers: list[Layer] = []
    inlined = 0
    for layer in draft.layers:
        branch = _taken(draft, layer)
        spliced = None if branch is None else _splice(draft, layer, branch)
        inlined += spliced is not None
        layers += [layer] if spliced is None else spliced
    draft.layers = layers
    return inlined


def _taken(draft: Draft, layer: Layer) -> Program | None:
    if layer.main.domain or layer.main.operator != "If":
        return None
    condition = draft.weights.get(layer.main.inputs[0])
    if condition is None or condition.size != 1:
        return None
    branch = layer.main.attributes["then_branch" if condition.item() else "else_branch"]
    assert isinstance(branch, Program)
    return branch


def _splice(draft: Draft, layer: Layer, branch: Program) -> list[Layer] | None:
    """The branch's layers under names that nothing else has, then copies to the If's outputs.

    None where a body inside the branch captures a name that would have to change.
    """
    names: dict[str, str] = {}
    shared = {name for name, array in branch.weights.items() if draft.weights.get(name) is array}
    made = [name for part in branch.layers for name in part.outputs if name]
    clashing = [name for name in (*branch.weights, *made) if name in draft.taken - shared]
    if any(name in part.captures for part in branch.layers for name in clashing):
        return None
    for name in clashing:
        names[name] = draft.fresh(name)
    for name, array in branch.weights.items():
        draft.weights[names.get(name, name)] = array
    for name in (*branch.weights, *made):
        draft.taken.add(names.get(name, name))
        if name in branch.types:
            draft.types[names.get(name, name)] = branch.types[name]
    parts = []
    for part in branch.layers:
        renamed = rename_reads(part, names)
        for name in part.outputs:
            if name in names:
                renamed = rename_result(renamed, name, names[name])
        parts.append(renamed)
    for variable, target in zip(branch.outputs, layer.outputs, strict=True):
        if target:
            source = names.get(variable.name, variable.name)
            parts.append(layer_of(draft.node("Identity", (source,), (target,))))
            draft.types[target] = branch.type_of(variable.name)
    return parts
