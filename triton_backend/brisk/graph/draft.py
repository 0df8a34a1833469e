"""The graph while it is being rewritten: mutable, single-threaded, discarded afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from brisk.graph.files.element_types import dtype_of_name
from brisk.graph.files.value_types import type_of_array
from brisk.graph.operators import newest_version
from brisk.graph.program import UNKNOWN_TYPE, Attribute, Node, ValueType, Variable


@dataclass(slots=True)
class Draft:
    """Nodes in execution order with everything passes look at.

    A node is known by its first output. A rewritten one keeps its outputs, and with them its
    place, so that a fused node stands where its last part stood, behind everything that any part
    reads. ``outputs`` are all computed by nodes, each by name once. ``captures``: outer values
    that the graph, a body, reads. ``defaults``: values of inputs that a request may leave out.
    """

    name: str
    inputs: tuple[Variable, ...]
    weights: dict[str, np.ndarray]
    types: dict[str, ValueType]
    outputs: tuple[str, ...] = ()
    captures: tuple[str, ...] = ()
    defaults: dict[str, np.ndarray] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    """Names in use, here and in enclosing graphs."""
    brought_bytes: int = field(init=False)
    """Of the weights that came with the model."""
    _nodes: dict[str, Node] = field(default_factory=dict, init=False)
    _keys: dict[str, str] = field(default_factory=dict, init=False)
    """For each computed value the first output of the node that makes it."""
    _readers: dict[str, set[str]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.brought_bytes = sum(array.nbytes for array in self.weights.values())

    # Values.

    def type_of(self, name: str) -> ValueType:
        return self.types.get(name, UNKNOWN_TYPE)

    def rank(self, name: str) -> int | None:
        return self.type_of(name).rank

    def scalar(self, name: str) -> float | None:
        """The value of a constant with one element; None for anything else."""
        array = self.weights.get(name)
        if array is None or array.size != 1 or array.dtype.kind not in "fiuV":
            return None
        return float(array.reshape(-1)[0])

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
        self.keep_weight(name, np.asanyarray(array))
        return name

    def scalar_like(self, node: Node, name: str, value: float) -> tuple[str, list[Node]]:
        """A constant scalar of the first input's type, cast at run time where that is unknown.

        Its name, and the nodes that make it.
        """
        hint = f"{node.outputs[0]}.{name}"
        dtype = self.type_of(node.inputs[0]).dtype
        if dtype is not None:
            constant = np.array(value, np.float64).astype(dtype_of_name(dtype))
            return self.add_weight(constant, hint), []
        constant = np.array(value, np.float32)
        cast = self.fresh(f"{hint}.cast")
        inputs = (self.add_weight(constant, hint), node.inputs[0])
        return cast, [self.node("CastLike", inputs, (cast,))]

    def keep_weight(self, name: str, array: np.ndarray) -> None:
        array.setflags(write=False)
        self.weights[name] = array
        self.types[name] = type_of_array(array)

    # Nodes.

    def node(
        self,
        operator: str,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        name: str = "",
        **attributes: Attribute,
    ) -> Node:
        """A node of the default operator set in its newest form; not added."""
        inputs = without_trailing_gaps(inputs)
        return Node(operator, inputs, outputs, attributes, "", newest_version(operator, ""), name)

    def __iter__(self) -> Iterator[Node]:
        """Nodes in execution order; those removed meanwhile are skipped."""
        for key in list(self._nodes):
            node = self._nodes.get(key)
            if node is not None:
                yield node

    def put(self, node: Node) -> None:
        """Add a node behind all others, or in the place of the one with the same first output."""
        key = _key(node)
        old = self._nodes.get(key)
        if old is not None:
            self._forget(old)
        self._nodes[key] = node
        for name in node.outputs:
            if name:
                self._keys[name] = key
        for name in _reads(node):
            self._readers.setdefault(name, set()).add(key)

    def remove(self, node: Node) -> None:
        self._forget(node)
        del self._nodes[_key(node)]

    def _forget(self, node: Node) -> None:
        for name in node.outputs:
            self._keys.pop(name, None)
        for name in _reads(node):
            self._readers[name].discard(_key(node))

    def maker(self, name: str, *operators: str) -> Node | None:
        """The standard node that computes ``name`` if it is one of ``operators``."""
        key = self._keys.get(name)
        node = None if key is None else self._nodes[key]
        return node if node is not None and is_standard(node, *operators) else None

    def sole_reader(self, name: str, *operators: str) -> Node | None:
        """The standard node that alone reads ``name``, if it is one of ``operators``."""
        if not self.is_read_once(name):
            return None
        (key,) = self._readers[name]
        return self._nodes[key] if is_standard(self._nodes[key], *operators) else None

    def is_read_once(self, name: str) -> bool:
        """By one node and as one input, and no output."""
        keys = self._readers.get(name, ())
        return (
            len(keys) == 1
            and self.is_renamable(name)
            and sum(self._nodes[key].inputs.count(name) for key in keys) == 1
        )

    def is_used(self, name: str) -> bool:
        return bool(self._readers.get(name)) or name in self.outputs

    def is_renamable(self, name: str) -> bool:
        """Whether readers may be given another name: no body and no caller knows this one."""
        readers = [self._nodes[key] for key in self._readers.get(name, ())]
        return name not in self.outputs and not any(name in node.captures for node in readers)

    def fuse(self, root: Node, parts: Iterable[Node], fused: Node) -> bool:
        """Replace ``root`` and ``parts``, which only feed it, by ``fused`` in the root's place.

        False, changing nothing, where a value inside has a reader outside.
        """
        inside = {_key(part): part for part in parts}
        inside.pop(_key(root), None)
        members = {*inside, _key(root)}
        for part in inside.values():
            for name in filter(None, part.outputs):
                if not (self.is_renamable(name) and self._readers.get(name, set()) <= members):
                    return False
        for part in inside.values():
            self.remove(part)
        self.put(fused)
        return True

    def expand(self, node: Node, into: Iterable[Node]) -> None:
        """Put several nodes in the place of one, whose outputs they make."""
        nodes, place = list(self), list(self._nodes).index(_key(node))
        self._nodes, self._keys, self._readers = {}, {}, {}
        for each in (*nodes[:place], *into, *nodes[place + 1 :]):
            self.put(each)

    def redirect(self, old: str, new: str) -> None:
        """Make every reader of ``old`` read ``new``. Precondition: ``is_renamable(old)``."""
        for key in list(self._readers.get(old, ())):
            node = self._nodes[key]
            inputs = tuple(new if name == old else name for name in node.inputs)
            self.put(replace(node, inputs=inputs))

    def remove_dead(self) -> None:
        """Drop what leads to no output."""
        needed = set(self.outputs)
        for node in reversed(self._nodes.copy().values()):
            if needed.isdisjoint(filter(None, node.outputs)):
                self.remove(node)
            else:
                needed.update(_reads(node))


def _key(node: Node) -> str:
    return next(filter(None, node.outputs))


def _reads(node: Node) -> list[str]:
    return [name for name in (*node.inputs, *node.captures) if name]


def is_standard(node: Node, *operators: str) -> bool:
    """Whether it is of the default operator set and has one of these names."""
    return node.operator in operators and not node.domain


def without_trailing_gaps(inputs: tuple[str, ...]) -> tuple[str, ...]:
    while inputs and not inputs[-1]:
        inputs = inputs[:-1]
    return inputs
