"""Turns graphs into programs: nodes made canonical, drafts optimised, lifetimes computed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto

from brisk.errors import InvalidModelError
from brisk.graph.canonical import canonicalise
from brisk.graph.draft import Draft
from brisk.graph.files.sources import Extraction
from brisk.graph.files.tensors import densify, read_tensor
from brisk.graph.files.value_types import (
    complete,
    from_type_proto,
    type_of_array,
    without_numbered,
)
from brisk.graph.inference import types_of
from brisk.graph.operators import domain_of
from brisk.graph.passes import optimise
from brisk.graph.program import (
    UNKNOWN_TYPE,
    Attribute,
    Layer,
    Node,
    Program,
    ValueType,
    Variable,
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a body sees of the graphs around it."""

    weights: Mapping[str, np.ndarray]
    types: Mapping[str, ValueType]
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Assembler:
    """Makes programs of the skeletons that ``extraction`` cut; one per model.

    ``versions``: the model's opset by domain. ``overridable``: inputs with initialisers are
    defaults (IR version 4 on), not weights that an old writer listed twice. ``optimised``:
    whether programs are, or have the model's own nodes.
    """

    extraction: Extraction
    versions: Mapping[str, int]
    overridable: bool
    optimised: bool = True

    def program(self, graph: GraphProto, name: str, outer: Surroundings | None = None) -> Program:
        draft = self._draft(graph, name, outer)
        if self.optimised:
            optimise(draft)
        return finish(draft)

    def _draft(self, graph: GraphProto, name: str, outer: Surroundings | None) -> Draft:
        constants = self.extraction.table_of(graph)
        stated = [info.name for info in graph.input]
        defaults = {key: constants[key] for key in stated if key in constants}
        types = types_of(graph)
        for key, claim in self.extraction.claims_of(graph).items():
            types[key] = complete(types.get(key, UNKNOWN_TYPE), claim)
        inputs = tuple(
            Variable(key, types.get(key, UNKNOWN_TYPE), key in defaults)
            for key in stated
            if self.overridable or key not in defaults
        )
        if not self.overridable:
            defaults = {}
        weights = {key: array for key, array in constants.items() if key not in defaults}
        types |= {key: type_of_array(array) for key, array in weights.items()}
        draft = Draft(name, inputs, weights, types, defaults=defaults)
        local = _local_names(graph, [variable.name for variable in inputs], weights)
        draft.taken = set(local)
        if outer is not None:
            draft.taken |= outer.names
            draft.captures = self._adopt(draft, self._reads(graph) - local, outer)
        known = {variable.name for variable in inputs} | set(weights) | set(draft.captures)
        for proto in in_order(graph.node, known, self._free_names):
            for node in canonicalise(self._node(proto, draft), draft):
                if any(node.outputs):
                    draft.put(node)
        _settle_outputs(draft, [info.name for info in graph.output], is_body=outer is not None)
        return draft

    def _adopt(self, draft: Draft, names: set[str], outer: Surroundings) -> tuple[str, ...]:
        """Outer constants that a body reads become its own (shared) weights, the rest captures."""
        for name in names & outer.weights.keys():
            draft.weights[name] = outer.weights[name]
            draft.types[name] = type_of_array(outer.weights[name])
        captures = sorted((names & outer.names) - outer.weights.keys())
        draft.types |= {name: outer.types[name] for name in captures if name in outer.types}
        return tuple(captures)

    def _reads(self, graph: GraphProto) -> set[str]:
        reads = {name for node in graph.node for name in self._free_names(node)}
        reads.update(info.name for info in graph.output)
        return reads - {""}

    def _free_names(self, node: NodeProto) -> set[str]:
        """Values that ``node`` reads, those its bodies take from outside included."""
        names = {name for name in node.input if name}
        for attribute in node.attribute:
            for body in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                inputs = [info.name for info in body.input]
                local = _local_names(body, inputs, self.extraction.table_of(body))
                names |= self._reads(body) - local
        return names

    def _node(self, proto: NodeProto, draft: Draft) -> Node:
        domain = domain_of(proto.domain)
        return Node(
            proto.op_type,
            tuple(proto.input),
            tuple(proto.output),
            {item.name: self._attribute(item, proto, draft) for item in proto.attribute},
            domain,
            self.versions.get(domain, 0),
            proto.name,
        )

    def _attribute(self, proto: AttributeProto, node: NodeProto, draft: Draft) -> Attribute:
        kinds = AttributeProto
        kind = proto.type
        if proto.ref_attr_name:
            raise InvalidModelError(
                f"node '{node.name or node.op_type}' refers to attribute "
                f"'{proto.ref_attr_name}' of a function, but is in none"
            )
        if kind in _PLAIN:
            return _PLAIN[kind](proto)
        if kind == kinds.TENSOR:
            return read_tensor(proto.t, self.extraction.directory)
        if kind == kinds.SPARSE_TENSOR:
            return densify(proto.sparse_tensor, self.extraction.directory)
        if kind == kinds.TYPE_PROTO:
            return from_type_proto(proto.tp)
        if kind in (kinds.GRAPH, kinds.GRAPHS):
            seen = Surroundings(draft.weights, draft.types, frozenset(draft.taken))
            graphs = [proto.g] if kind == kinds.GRAPH else list(proto.graphs)
            bodies = tuple(
                self.program(graph, graph.name or f"{node.name}.{proto.name}", seen)
                for graph in graphs
            )
            return bodies[0] if kind == kinds.GRAPH else bodies
        raise InvalidModelError(
            f"node '{node.name or node.op_type}' has attribute '{proto.name}' of a kind "
            f"({kinds.AttributeType.Name(kind)}) that no operator uses"
        )


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


_PLAIN: dict[int, Any] = {
    AttributeProto.FLOAT: lambda proto: proto.f,
    AttributeProto.INT: lambda proto: proto.i,
    AttributeProto.STRING: lambda proto: _text(proto.s),
    AttributeProto.FLOATS: lambda proto: tuple(proto.floats),
    AttributeProto.INTS: lambda proto: tuple(proto.ints),
    AttributeProto.STRINGS: lambda proto: tuple(_text(item) for item in proto.strings),
}


def _local_names(
    graph: GraphProto, inputs: list[str], weights: Mapping[str, np.ndarray]
) -> set[str]:
    """Names that ``graph`` itself defines; raises InvalidModelError where one is defined twice."""
    names = set(weights)
    for name in [*inputs, *(name for node in graph.node for name in node.output if name)]:
        if name in names and name not in inputs:
            raise InvalidModelError(f"value '{name}' is defined twice")
        names.add(name)
    if len(set(inputs)) != len(inputs):
        twice = sorted({name for name in inputs if inputs.count(name) > 1})
        raise InvalidModelError(f"input '{twice[0]}' is listed twice")
    return names


def _settle_outputs(draft: Draft, names: list[str], is_body: bool) -> None:
    """Make every output the result of a node, and each listed once.

    The exception is a model's output that is its input: it is passed through by name.
    """
    computed = {name for node in draft for name in node.outputs}
    inputs = {variable.name for variable in draft.inputs}
    elsewhere = inputs | set(draft.weights) | set(draft.captures)
    settled: list[str] = []
    for name in names:
        if name not in computed | elsewhere:
            raise InvalidModelError(f"output '{name}' is not computed by any node")
        if name in names[: len(settled)] and not is_body:
            raise InvalidModelError(f"output '{name}' is listed twice")
        passed_through = not is_body and name in inputs
        if (name in computed and name not in settled) or passed_through:
            settled.append(name)
        else:
            settled.append(_copied(draft, name, keep_name=not is_body))
    draft.outputs = tuple(settled)


def _copied(draft: Draft, name: str, keep_name: bool) -> str:
    """A node's copy of an input, weight or capture that is an output as well.

    A model's output keeps its name, so the weight that it copies is renamed.
    """
    source, target = name, name
    if keep_name:
        source = draft.fresh(f"{name}.constant")
        draft.keep_weight(source, draft.weights.pop(name))
        draft.redirect(name, source)
    else:
        target = draft.fresh(f"{name}.copy")
        draft.types[target] = draft.type_of(name)
    draft.put(draft.node("Identity", (source,), (target,)))
    return target


def finish(draft: Draft) -> Program:
    """The program of an optimised draft; drops weights and types that nothing refers to."""
    layers = tuple(Layer(index, node, node.captures) for index, node in enumerate(draft))
    read = {name for layer in layers for name in layer.operands}
    inputs = tuple(variable.name for variable in draft.inputs)
    mentioned = read.union(draft.outputs, inputs, *(layer.outputs for layer in layers))
    weights = {name: array for name, array in draft.weights.items() if name in read}
    return Program(
        name=draft.name,
        inputs=draft.inputs,
        outputs=tuple(
            Variable(name, without_numbered(draft.type_of(name))) for name in draft.outputs
        ),
        layers=layers,
        weights=weights | draft.defaults,
        types={name: value for name, value in draft.types.items() if name in mentioned},
        last_use=last_use_table(layers, inputs, draft.outputs),
        captures=draft.captures,
    )


def last_use_table(
    layers: Sequence[Layer], inputs: Iterable[str], outputs: Collection[str]
) -> tuple[tuple[str, ...], ...]:
    """Per layer, the computed values and inputs that nothing reads after it.

    Outputs never die; weights and captures are not this program's to free. A value that
    nothing reads dies after the layer that made it, an unread input after the first layer.
    """
    last: dict[str, int] = dict.fromkeys(inputs, 0)
    for index, layer in enumerate(layers):
        last.update((name, index) for name in layer.outputs if name)
        last.update((name, index) for name in layer.operands if name in last)
    table: list[list[str]] = [[] for _ in layers]
    for name, index in last.items():
        if name not in outputs and table:
            table[index].append(name)
    return tuple(tuple(names) for names in table)


# Nodes in an order in which every value is computed before it is read.


def in_order(
    nodes: Iterable[NodeProto], known: Iterable[str], reads: Callable[[NodeProto], set[str]]
) -> list[NodeProto]:
    """``nodes`` sorted topologically, and left alone where they already are.

    Raises InvalidModelError naming a value that nothing defines, or the nodes of a cycle.
    """
    defined = set(known)
    ordered: list[NodeProto] = []
    waiting = [(node, reads(node)) for node in nodes]
    while waiting:
        still = []
        for node, needed in waiting:
            if needed <= defined:
                ordered.append(node)
                defined.update(node.output)
            else:
                still.append((node, needed))
        if len(still) == len(waiting):
            _explain(waiting, defined)
        waiting = still
    return ordered


def _explain(waiting: list[tuple[NodeProto, set[str]]], defined: set[str]) -> None:
    coming = {name for node, _ in waiting for name in node.output}
    for node, needed in waiting:
        missing = sorted(needed - defined - coming)
        if missing:
            raise InvalidModelError(
                f"node '{node.name or node.op_type}' ({node.op_type}) reads '{missing[0]}', "
                "which no node, input or initialiser defines"
            )
    names = ", ".join(f"'{node.name or node.op_type}'" for node, _ in waiting[:5])
    raise InvalidModelError(f"the graph has a cycle through nodes {names}")
