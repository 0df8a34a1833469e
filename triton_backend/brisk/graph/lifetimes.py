"""Which values die after which layer, and the checks that a program holds together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from brisk.graph.program import Layer, Program


def last_use_table(
    layers: Sequence[Layer], inputs: Iterable[str], outputs: Iterable[str]
) -> tuple[tuple[str, ...], ...]:
    """Per layer, the computed values and inputs that nothing reads after it.

    Outputs never die; weights and captures are not this program's to free. A value that
    nothing reads dies after the layer that made it, an unread input after the first layer.
    """
    kept = set(outputs)
    last: dict[str, int] = dict.fromkeys(inputs, 0)
    for index, layer in enumerate(layers):
        for name in layer.outputs:
            if name:
                last[name] = index
        for name in layer.operands:
            if name in last:
                last[name] = index
    table: list[list[str]] = [[] for _ in layers]
    for name, index in last.items():
        if name not in kept and table:
            table[index].append(name)
    return tuple(tuple(names) for names in table)


def check_integrity(program: Program) -> None:
    """Raise AssertionError where ``program`` breaks a promise of its records.

    Every operand is defined before its layer, every value once; the last-use table frees each
    value once and none too early; bodies are checked too.
    """
    outer = set(program.captures)
    inputs = {variable.name for variable in program.inputs}
    defined = inputs | set(program.weights) | outer
    assert len(program.last_use) == len(program.layers), "a last-use entry for every layer"
    alive = set(defined)
    for index, layer in enumerate(program.layers):
        assert layer.index == index, f"layer {layer.name} has index {layer.index}, not {index}"
        for name in layer.operands:
            assert not name or name in defined, f"layer {layer.name} reads undefined '{name}'"
            assert not name or name in alive, f"layer {layer.name} reads freed '{name}'"
        _check_nodes(layer)
        for name in layer.outputs:
            assert not name or name not in defined, f"'{name}' is defined twice"
            defined.add(name)
            alive.add(name)
        for name in program.last_use[index]:
            assert name in alive, f"'{name}' is freed twice"
            assert name in inputs or name not in program.weights, f"weight '{name}' is freed"
            assert name not in outer, f"captured '{name}' is freed"
            alive.discard(name)
        for value in layer.main.attributes.values():
            for body in value if isinstance(value, tuple) else (value,):
                if isinstance(body, Program):
                    check_integrity(body)
                    missing = set(body.captures) - set(layer.captures)
                    assert not missing, f"layer {layer.name} does not list captures {missing}"
    outputs = [variable.name for variable in program.outputs]
    assert len(set(outputs)) == len(outputs), "an output is listed twice"
    computed = {name for layer in program.layers for name in layer.outputs}
    for name in outputs:
        assert name in alive, f"output '{name}' does not outlive the program"
        assert name in computed or name in inputs, f"nothing computes output '{name}'"


def _check_nodes(layer: Layer) -> None:
    """The oracle nodes read only the layer's operands and make all its outputs."""
    known = set(layer.operands) | {""}
    for node in layer.nodes:
        for name in node.inputs:
            assert name in known, f"layer {layer.name}: oracle node reads foreign '{name}'"
        known.update(node.outputs)
    for name in layer.outputs:
        assert name in known, f"layer {layer.name}: no oracle node makes '{name}'"
