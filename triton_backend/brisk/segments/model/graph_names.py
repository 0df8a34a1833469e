"""Names in a graph: those that its nodes read and make, and the live values between nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TypeProto, helper


@dataclass(frozen=True, slots=True)
class NodeNames:
    """The operators and names of a graph's nodes, by position: a start walks the messages once."""

    operators: Sequence[str]
    reads: Sequence[tuple[str, ...]]
    """See ``reads_of``."""
    makes: Sequence[tuple[str, ...]]
    """The outputs that have a name."""
    last_use: Mapping[str, int]
    """The position of the last node that reads each value; for the graph's outputs the node
    count."""
    constants: frozenset[str]
    """See ``constants_of``."""


WITH_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""ONNX's operators that have graphs for attributes; of other domains any may."""


def bodies_of(node: NodeProto) -> Sequence[GraphProto]:
    """Return the graphs that a node has for attributes. Attributes of ONNX's other operators are
    not looked at: ONNX Runtime takes no graph there."""
    if node.op_type not in WITH_BODIES and node.domain in ("", "ai.onnx"):
        return ()
    return [body for attribute in node.attribute for body in graphs_in(attribute)]


def graphs_in(attribute: AttributeProto) -> Iterator[GraphProto]:
    """Yield the graphs that a node's attribute holds."""
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def with_inner(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield the nodes, and those of their bodies at any depth."""
    remaining = [nodes]
    while remaining:
        for node in remaining.pop():
            yield node
            remaining += [body.node for body in bodies_of(node)]


def operators_of(model: ModelProto) -> set[str]:
    """Return the operators of all nodes, those of bodies and functions included."""
    parts = (model.graph.node, *(function.node for function in model.functions))
    return {node.op_type for node in with_inner(chain.from_iterable(parts))}


def calls_of(model: ModelProto, operators: Collection[str]) -> set[int]:
    """Return the positions of the nodes in whose bodies or functions one of ``operators`` stands,
    at any depth."""
    callers: dict[tuple[str, str], list[tuple[str, str]]] = {}
    remaining: list[tuple[str, str]] = []
    for function in model.functions:
        for node in with_inner(function.node):
            name = function.domain, function.name
            callers.setdefault((node.domain, node.op_type), []).append(name)
            if node.op_type in operators:
                remaining.append(name)
    functions: set[tuple[str, str]] = set()
    while remaining:
        if (name := remaining.pop()) not in functions:
            functions.add(name)
            remaining += callers.get(name, ())

    def is_one(node: NodeProto) -> bool:
        return node.op_type in operators or (node.domain, node.op_type) in functions

    return {
        place
        for place, node in enumerate(model.graph.node)
        if (node.domain, node.op_type) in functions
        or any(is_one(inner) for body in bodies_of(node) for inner in with_inner(body.node))
    }


def nested_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Yield the nodes of bodies and functions."""
    for function in model.functions:
        yield from function.node
    remaining = [model.graph.node, *(function.node for function in model.functions)]
    while remaining:
        for node in remaining.pop():
            for body in (body for each in node.attribute for body in graphs_in(each)):
                yield from body.node
                remaining.append(body.node)


def names_in_bodies(graph: GraphProto) -> set[str]:
    """Return the names that the bodies of the graph's nodes define, at any depth.

    A body may give its own value the name of an initializer of the graph. ONNX Runtime takes what
    ``add_initializer`` gives it for every initializer of the name, so none of these may be given.
    """
    names: set[str] = set()
    for node in with_inner(graph.node):
        for body in bodies_of(node):
            names.update(info.name for info in body.input)
            names |= constants_of(body)
            names.update(name for inner in body.node for name in inner.output)
    return names


def names_of(graph: GraphProto) -> NodeNames:
    operators = [node.op_type for node in graph.node]
    reads = [
        tuple(reads_of(node))
        if operator in WITH_BODIES or node.domain not in ("", "ai.onnx")
        else tuple(filter(None, node.input))
        for node, operator in zip(graph.node, operators, strict=True)
    ]
    last_use: dict[str, int] = {}
    for position, names in enumerate(reads):
        for name in names:
            last_use[name] = position
    last_use.update((info.name, len(reads)) for info in graph.output)
    return NodeNames(
        operators,
        reads,
        [tuple(filter(None, node.output)) for node in graph.node],
        last_use,
        frozenset(constants_of(graph)),
    )


def reads_of(node: NodeProto, own: Collection[str] = ()) -> Iterator[str]:
    """Yield the names that a node reads, including those that its bodies take from outside.

    ``own``: names of the body that contains the node, which do not come from outside.
    """
    for name in node.input:
        if name and name not in own:
            yield name
    for body in bodies_of(node):
        inside = {*own, *(info.name for info in body.input), *constants_of(body)}
        inside.update(name for inner in body.node for name in inner.output)
        for inner in body.node:
            yield from reads_of(inner, inside)
        yield from (info.name for info in body.output if info.name not in inside)


def has_bodies(graph: GraphProto) -> bool:
    """Whether a node of the graph has a graph for an attribute."""
    return any(map(bodies_of, graph.node))


def constants_of(graph: GraphProto) -> set[str]:
    """Return the names of initializers, sparse ones included."""
    names = {tensor.name for tensor in graph.initializer}
    return names | {sparse.values.name for sparse in graph.sparse_initializer}


def types_of(graph: GraphProto) -> dict[str, TypeProto]:
    types = {
        tensor.name: helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        for tensor in graph.initializer
    }
    return {**types, **value_types(graph)}


def value_types(graph: GraphProto, wanted: Collection[str] | None = None) -> dict[str, TypeProto]:
    """Return ``types_of`` without initializers. ``wanted``: only the types of these names."""
    infos = chain(graph.input, graph.output, graph.value_info)
    if wanted is None:
        return {info.name: info.type for info in infos}
    return {name: info.type for info in infos if (name := info.name) in wanted}


def live_values(graph: GraphProto) -> list[tuple[str, ...]]:
    """Return the live values by the number of nodes done, from 0 to all.

    These are inputs and computed values that later nodes read, or that are outputs of the graph,
    in the order in which they came to be.
    """
    last_use, constant = names_of(graph).last_use, constants_of(graph)
    alive = {info.name: None for info in graph.input if info.name not in constant}
    table = []
    for position in range(len(graph.node) + 1):
        if position:
            alive.update((name, None) for name in graph.node[position - 1].output if name)
        alive = {name: None for name in alive if last_use.get(name, -1) >= position}
        table.append(tuple(alive))
    return table


def single_values(graph: GraphProto) -> dict[str, int]:
    """Return the computed values that are the only live one at a boundary, apart from values that
    follow from shapes alone. By name: the number of nodes done at the first such boundary."""
    inputs, shapes = {info.name for info in graph.input}, shape_values(graph)
    positions: dict[str, int] = {}
    for position, live in enumerate(live_values(graph)[:-1]):
        own = [name for name in live if name not in shapes]
        if len(own) == 1 and own[0] not in inputs:
            positions.setdefault(own[0], position)
    return positions


_OF_SHAPES = frozenset({"Shape", "Size"})


def shape_values(graph: GraphProto) -> set[str]:
    """Return the computed values that follow from shapes of values and from constants alone: a few
    numbers, as exporters pass them to Reshape and Expand."""
    constant = constants_of(graph) - {info.name for info in graph.input}
    values: set[str] = set()
    for node in graph.node:
        is_made = all(name in values or name in constant for name in reads_of(node))
        if node.op_type in _OF_SHAPES or (is_made and any(name in values for name in node.input)):
            values.update(name for name in node.output if name)
    return values


def is_in_order(graph: GraphProto, names: NodeNames | None = None) -> bool:
    """Whether the segments of the graph would compute what the whole graph does.

    Every name is defined once, every node reads earlier values only, every output is made by a
    node. Other graphs are left to ONNX Runtime whole: it sorts nodes, and gives initializers and
    inputs as outputs, but refuses names that are defined twice, which no segment alone would show.
    """
    names = names or names_of(graph)
    inputs = {info.name for info in graph.input} | names.constants
    computed: set[str] = set()
    for reads, makes in zip(names.reads, names.makes, strict=True):
        if any(name not in inputs and name not in computed for name in reads):
            return False
        for name in makes:
            if name in inputs or name in computed:
                return False
            computed.add(name)
    outputs = [info.name for info in graph.output]
    return computed.issuperset(outputs) and len(set(outputs)) == len(outputs)
