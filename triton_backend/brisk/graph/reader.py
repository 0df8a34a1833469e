"""Reads ONNX models into programs: nodes made canonical, drafts optimised, lifetimes computed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from onnx import (
    IR_VERSION,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    TypeProto,
    helper,
    inliner,
)

from brisk.errors import BriskError, InvalidModelError
from brisk.graph.canonical import canonicalise
from brisk.graph.draft import Draft
from brisk.graph.files.mapping import map_file
from brisk.graph.files.proto import (
    complete,
    from_type_proto,
    type_of_array,
    without_numbered,
)
from brisk.graph.files.sources import Extraction, bodies_of
from brisk.graph.files.tensors import densify, read_tensor
from brisk.graph.files.wire_format import MalformedMessage, detach_large_tensors
from brisk.graph.inference import infer, types_of
from brisk.graph.operators import domain_of
from brisk.graph.passes import optimise
from brisk.graph.program import (
    UNKNOWN_TYPE,
    Attribute,
    Node,
    Program,
    Variable,
)

DETACHED_BYTES = 4096
"""Initialisers from this size on bypass protobuf."""


def read_program(path: Path) -> Program:
    """The optimised program of the ONNX file at ``path``.

    Weights are views of the mapped file: see ``brisk.graph.files.mapping``. Raises
    InvalidModelError (or its subclass UnsupportedOperatorError) naming the file and what is
    wrong with it.
    """
    try:
        data = map_file(path).data
    except OSError as error:
        raise InvalidModelError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return _build(data, path.parent)
    except BriskError as error:
        raise type(error)(f"{path}: {error}") from error


def build_program(
    model: ModelProto, directory: Path | None = None, name: str = "", *, optimised: bool = True
) -> Program:
    """The program of ``model``, which is not changed; not ``optimised``: of its own nodes.

    ``directory``: where external data lies. Raises as ``read_program``.
    """
    return _build(memoryview(model.SerializeToString()), directory, name, optimised)


def _build(
    data: memoryview, directory: Path | None, name: str = "", optimised: bool = True
) -> Program:
    if not data:
        raise InvalidModelError("the file is empty, not an ONNX model")
    try:
        rest, detached = detach_large_tensors(data, DETACHED_BYTES)
        model = ModelProto.FromString(rest)
    except (MalformedMessage, DecodeError) as error:
        raise InvalidModelError(f"not an ONNX model, or cut off ({error})") from error
    if not model.HasField("graph") or not model.opset_import:
        raise InvalidModelError("not an ONNX model: it has no graph or no operator set")
    raw = {model.graph.initializer[index].name: view for index, view in detached.items()}
    if model.functions:
        model = _without_functions(model)
    versions = {domain_of(entry.domain): entry.version for entry in model.opset_import}
    if 0 < model.ir_version < 4:
        _forget_listed_weights(model.graph)
    model.ir_version = IR_VERSION
    extraction = Extraction(directory)
    try:
        extraction.strip(model.graph, raw)
        graph = infer(model).graph
        return Assembler(extraction, versions, optimised).program(graph, name or graph.name)
    except BriskError:
        raise
    except Exception as error:  # the model's writer, not Brisk, decides what can be wrong here
        raise InvalidModelError(
            f"the model is malformed: {type(error).__name__}: {error}"
        ) from error


def _forget_listed_weights(graph: GraphProto) -> None:
    """Before IR version 4 writers list weights among the inputs; since then these are defaults."""
    weights = {tensor.name for tensor in graph.initializer}
    for place in reversed(range(len(graph.input))):
        if graph.input[place].name in weights:
            del graph.input[place]


def _without_functions(model: ModelProto) -> ModelProto:
    """``model`` with its own functions inlined."""
    try:
        return inliner.inline_local_functions(model, convert_version=True)
    except (RuntimeError, ValueError) as error:
        raise InvalidModelError(f"its functions cannot be inlined: {error}") from error


@dataclass(frozen=True, slots=True)
class Assembler:
    """Makes programs of the graphs that ``extraction`` stripped; one per model.

    ``versions``: the model's opset by domain. ``optimised``: whether programs are, or have the
    model's own nodes.
    """

    extraction: Extraction
    versions: Mapping[str, int]
    optimised: bool

    def program(self, graph: GraphProto, name: str, outer: Draft | None = None) -> Program:
        draft = self._draft(graph, name, outer)
        if self.optimised:
            optimise(draft)
        return finish(draft)

    def _draft(self, graph: GraphProto, name: str, outer: Draft | None) -> Draft:
        constants, claims = self.extraction.of(graph)
        stated = [info.name for info in graph.input]
        defaults = {key: constants[key] for key in stated if key in constants}
        types = types_of(graph)
        for key, claim in claims.items():
            types[key] = complete(types.get(key, UNKNOWN_TYPE), claim)
        inputs = tuple(
            Variable(key, types.get(key, UNKNOWN_TYPE), key in defaults) for key in stated
        )
        weights = {key: array for key, array in constants.items() if key not in defaults}
        types |= {key: type_of_array(array) for key, array in weights.items()}
        draft = Draft(name, inputs, weights, types, defaults=defaults)
        local = _local_names(graph, weights)
        draft.taken = set(local)
        if outer is not None:
            draft.taken |= outer.taken
            draft.captures = self._adopt(draft, self._reads(graph) - local, outer)
        known = {*stated, *weights, *draft.captures}
        for proto in in_order(graph.node, known, self._free_names):
            for node in canonicalise(self._node(proto, draft), draft):
                if any(node.outputs):
                    draft.put(node)
                known.update(filter(None, node.outputs))
        draft.outputs = tuple(info.name for info in graph.output)
        for place, name in enumerate(draft.outputs):
            if name not in known:
                raise InvalidModelError(f"output '{name}' is not computed by any node")
            if outer is None and name in draft.outputs[:place]:
                raise InvalidModelError(f"output '{name}' is listed twice")
        return draft

    def _adopt(self, draft: Draft, names: set[str], outer: Draft) -> tuple[str, ...]:
        """Outer constants that a body reads become its own (shared) weights, the rest captures."""
        for name in names & outer.weights.keys():
            draft.weights[name] = outer.weights[name]
            draft.types[name] = type_of_array(outer.weights[name])
        captures = sorted((names & outer.taken) - outer.weights.keys())
        draft.types |= {name: outer.types[name] for name in captures if name in outer.types}
        return tuple(captures)

    def _reads(self, graph: GraphProto) -> set[str]:
        reads = {name for node in graph.node for name in self._free_names(node)}
        reads.update(info.name for info in graph.output)
        return reads - {""}

    def _free_names(self, node: NodeProto) -> set[str]:
        """Values that ``node`` reads, those its bodies take from outside included."""
        names = {name for name in node.input if name}
        for body in bodies_of(node):
            names |= self._reads(body) - _local_names(body, self.extraction.of(body)[0])
        return names

    def _node(self, proto: NodeProto, draft: Draft) -> Node:
        domain = domain_of(proto.domain)
        return Node(
            proto.op_type,
            tuple(proto.input),
            tuple(proto.output),
            {
                item.name: self._attribute(
                    helper.get_attribute_value(item), f"{proto.name}.{item.name}", draft
                )
                for item in proto.attribute
            },
            domain,
            self.versions.get(domain, 0),
            proto.name,
        )

    def _attribute(self, value: Any, name: str, draft: Draft) -> Attribute:
        if isinstance(value, list):
            items: Any = [self._attribute(item, name, draft) for item in value]
            return tuple(items)
        if isinstance(value, bytes):
            return value.decode("utf-8", "surrogateescape")
        if isinstance(value, TensorProto):
            return read_tensor(value, self.extraction.directory)
        if isinstance(value, SparseTensorProto):
            return densify(value, self.extraction.directory)
        if isinstance(value, TypeProto):
            return from_type_proto(value)
        if isinstance(value, GraphProto):
            return self.program(value, value.name or name, draft)
        return value  # a number


def _local_names(graph: GraphProto, constants: Iterable[str]) -> set[str]:
    """Names that ``graph`` itself defines; raises InvalidModelError where one is defined twice."""
    inputs = [info.name for info in graph.input]
    for name in inputs:
        if inputs.count(name) > 1:
            raise InvalidModelError(f"input '{name}' is listed twice")
    names = {*inputs, *constants}
    for name in filter(None, (name for node in graph.node for name in node.output)):
        if name in names and name not in inputs:
            raise InvalidModelError(f"value '{name}' is defined twice")
        names.add(name)
    return names


def finish(draft: Draft) -> Program:
    """The program of an optimised draft; drops weights and types that nothing refers to."""
    layers = tuple(draft)
    inputs = tuple(variable.name for variable in draft.inputs)
    read = {*draft.outputs, *(name for layer in layers for name in layer.operands)}
    mentioned = read.union(inputs, *(layer.outputs for layer in layers))
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
    layers: Sequence[Node], inputs: Iterable[str], outputs: Collection[str]
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
