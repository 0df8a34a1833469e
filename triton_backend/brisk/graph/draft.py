"""The graph while it is being rewritten: mutable, single-threaded, discarded afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from brisk.graph.files.element_types import dtype_of_name
from brisk.graph.files.proto import type_of_array
from brisk.graph.operators import newest_version
from brisk.graph.program import UNKNOWN_TYPE, Attribute, Node, ValueType, Variable

NO_NODE = Node("", (), ())
"""What a pattern finds where there is nothing: it has no operator and no inputs."""


@dataclass(slots=True)
class Draft:
    """Nodes in execution order with everything passes look at.

    A node is known by its first output. A rewritten one keeps its outputs, and with them its
    place, so that a fused node stands where its last part stood, behind everything that any part
    reads. ``captures``: outer values that the graph, a body, reads. ``defaults``: values of inputs
    that a request may leave out.
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
        for name in filter(None, node.operands):
            self._readers.setdefault(name, set()).add(key)

    def remove(self, node: Node) -> None:
        self._forget(node)
        del self._nodes[_key(node)]

    def _forget(self, node: Node) -> None:
        for name in node.outputs:
            self._keys.pop(name, None)
        for name in filter(None, node.operands):
            self._readers[name].discard(_key(node))

    def maker(self, name: str, *operators: str) -> Node:
        """The standard node that computes ``name`` if it is one of ``operators``; or NO_NODE."""
        node = self._nodes.get(self._keys.get(name, ""), NO_NODE)
        return node if is_standard(node, *operators) else NO_NODE

    def sole_reader(self, name: str, operator: str) -> Node:
        """The standard node that alone reads ``name``, if it is an ``operator``; or NO_NODE."""
        if not self.is_read_once(name):
            return NO_NODE
        (key,) = self._readers[name]
        return self._nodes[key] if is_standard(self._nodes[key], operator) else NO_NODE

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
                needed.update(node.operands)


def _key(node: Node) -> str:
    return next(filter(None, node.outputs))


def is_standard(node: Node, *operators: str) -> bool:
    """Whether it is of the default operator set and has one of these names."""
    return node.operator in operators and not node.domain


def without_trailing_gaps(inputs: tuple[str, ...]) -> tuple[str, ...]:
    while inputs and not inputs[-1]:
        inputs = inputs[:-1]
    return inputs


@dataclass(slots=True)
class Rewriting:
    """Nodes that take the place of ``node``, in their newest form and the order of the calls."""

    draft: Draft
    node: Node
    nodes: list[Node] = field(default_factory=list, init=False)

    @property
    def target(self) -> str:
        """The value that the new values are named after."""
        return self.node.outputs[0]

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Another node; the new value that it makes."""
        made = self.draft.fresh(f"{self.target}.{operator}")
        self.nodes.append(self.draft.node(operator, inputs, (made,), **attributes))
        return made

    def into(
        self, operator: str, *inputs: str, outputs: tuple[str, ...] = (), **attributes: Any
    ) -> list[Node]:
        """All nodes, the last one this, which makes ``outputs``, or all that ``node`` made."""
        outputs, name = outputs or self.node.outputs, self.node.name
        self.nodes.append(self.draft.node(operator, inputs, outputs, name, **attributes))
        return self.nodes

    def upgraded(
        self,
        *inputs: str,
        operator: str = "",
        without: tuple[str, ...] = (),
        **attributes: Any,
    ) -> list[Node]:
        """All nodes, the last one ``node`` with other inputs behind its first, and attributes."""
        old = self.node.attributes
        kept = {name: value for name, value in old.items() if name not in without}
        return self.into(
            operator or self.node.operator, self.node.inputs[0], *inputs, **{**kept, **attributes}
        )

    def constant(self, *numbers: int) -> str:
        """A vector of int64."""
        return self.draft.add_weight(np.array(numbers, np.int64), f"{self.target}.constant")

    def vector(self, attribute: str) -> str:
        """A list of integers as a constant; ``""`` where it is absent."""
        numbers = self.node.integers(attribute)
        return "" if numbers is None else self.constant(*numbers)

    def scalar(self, attribute: str, default: float) -> str:
        """A number as a constant of the first input's type, cast at run time where unknown."""
        value, hint = self.node.number(attribute, default), f"{self.target}.{attribute}"
        dtype = self.draft.type_of(self.node.inputs[0]).dtype
        array = np.array(value, np.float64).astype(dtype_of_name(dtype or "float32"))
        constant = self.draft.add_weight(array, hint)
        return constant if dtype else self.add("CastLike", constant, self.node.inputs[0])
