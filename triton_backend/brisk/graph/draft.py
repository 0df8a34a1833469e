"""The graph while it is being rewritten: mutable, single-threaded, discarded afterwards."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from brisk.graph.files.value_types import type_of_array
from brisk.graph.operators import newest_version
from brisk.graph.program import (
    UNKNOWN_TYPE,
    Attribute,
    Dimension,
    Layer,
    Node,
    Program,
    ValueType,
    Variable,
)


def captures_of(node: Node) -> tuple[str, ...]:
    """Outer values that the bodies of ``node`` read, each once, in order."""
    names: dict[str, None] = {}
    for value in node.attributes.values():
        bodies = value if isinstance(value, tuple) else (value,)
        for body in bodies:
            if isinstance(body, Program):
                names.update(dict.fromkeys(body.captures))
    return tuple(names)


def has_body(node: Node) -> bool:
    for value in node.attributes.values():
        first = value[0] if isinstance(value, tuple) and value else value  # of one kind each
        if isinstance(first, Program):
            return True
    return False


def layer_of(node: Node) -> Layer:
    """A layer of one node; its index is set when the program is assembled."""
    return Layer(0, node, (node,), node.outputs, captures=captures_of(node))


def reads_of(layer: Layer) -> list[str]:
    """Every value ``layer`` reads, repeats included, without left-out inputs."""
    return [name for name in layer.operands if name]


@dataclass(frozen=True, slots=True)
class Index:
    """Who makes and who reads each value of ``layers``, and what bodies read.

    Positions are those in ``places``, the same layers with gaps where others were.
    """

    layers: list[Layer]
    places: list[Layer | None]
    maker: dict[str, int]
    readers: dict[str, set[int]]
    captured: frozenset[str]


@dataclass(slots=True)
class Draft:
    """Layers in execution order with everything passes look at.

    ``outputs`` are all computed by layers, each by name once. ``captures``: outer values that
    the graph, a body, reads. ``defaults``: values of inputs that a request may leave out.
    """

    name: str
    inputs: tuple[Variable, ...]
    outputs: tuple[str, ...]
    layers: list[Layer]
    weights: dict[str, np.ndarray]
    types: dict[str, ValueType]
    captures: tuple[str, ...] = ()
    defaults: dict[str, np.ndarray] = field(default_factory=dict)
    values: dict[str, tuple[Dimension, ...]] = field(default_factory=dict)
    """What is known of the elements of small integer tensors (``brisk.graph.symbolic``)."""
    taken: set[str] = field(default_factory=set)
    """Names in use, here and in enclosing graphs."""
    index: Index | None = None
    """Of ``layers``, where the last pass left one; of use while they are the same list."""
    brought_bytes: int = field(init=False)
    """Of the weights that came with the model."""

    def __post_init__(self) -> None:
        self.brought_bytes = sum(array.nbytes for array in self.weights.values())

    def type_of(self, name: str) -> ValueType:
        return self.types.get(name, UNKNOWN_TYPE)

    def fresh(self, hint: str) -> str:
        """A name that nothing has yet."""
        name, number = hint, 0
        while name in self.taken:
            number += 1
            name = f"{hint}.{number}"
        self.taken.add(name)
        return name

    def add_weight(self, array: np.ndarray, hint: str) -> str:
        """Keep a new constant and return its name; takes ``array`` over as read-only."""
        name = self.fresh(hint)
        array = np.asanyarray(array)
        array.setflags(write=False)
        self.weights[name] = array
        self.types[name] = type_of_array(array)
        return name

    def add_value(self, hint: str, value_type: ValueType = UNKNOWN_TYPE) -> str:
        """A name for a new computed value."""
        name = self.fresh(hint)
        if value_type is not UNKNOWN_TYPE:
            self.types[name] = value_type
        return name

    def node(
        self,
        operator: str,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        name: str = "",
        **attributes: Attribute,
    ) -> Node:
        """A node of the default operator set in its newest form."""
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        return Node(operator, inputs, outputs, attributes, "", newest_version(operator, ""), name)

    def read_counts(self) -> Counter[str]:
        """How often each value is read: by layers, bodies, and as an output."""
        counts = Counter(name for layer in self.layers for name in reads_of(layer))
        counts.update(self.outputs)
        return counts


def rename_result(layer: Layer, old: str, new: str) -> Layer:
    """``layer`` making ``new`` where it made ``old``."""

    def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new if name == old else name for name in names)

    return replace(
        layer,
        main=replace(layer.main, outputs=renamed(layer.main.outputs)),
        nodes=tuple(
            replace(node, inputs=renamed(node.inputs), outputs=renamed(node.outputs))
            for node in layer.nodes
        ),
        outputs=renamed(layer.outputs),
    )


def rename_reads(layer: Layer, names: dict[str, str]) -> Layer:
    """``layer`` reading ``names[x]`` instead of ``x``.

    Precondition: no body of the layer captures a renamed value.
    """

    def renamed(node: Node) -> Node:
        if not any(name in names for name in node.inputs):
            return node
        return replace(node, inputs=tuple(names.get(name, name) for name in node.inputs))

    return replace(
        layer,
        main=renamed(layer.main),
        nodes=tuple(renamed(node) for node in layer.nodes),
        epilogue=tuple(
            step
            if step.operand is None
            else replace(step, operand=names.get(step.operand, step.operand))
            for step in layer.epilogue
        ),
    )
