"""Segments as models of their own: nodes, the weights they read, what crosses their borders."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
)

from brisk.segments.model.border_types import border_types
from brisk.segments.model.cutting import NodeNames, NodeSpan, constants_of, names_of
from brisk.segments.onnxruntime.refusals import shown


@dataclass(frozen=True, slots=True)
class Segment:
    """``proto``: an ONNX model. ``inputs``, ``outputs``: names of the values that cross, in order.

    ``dead``: values that nothing behind it reads. ``words``: its first and last node.
    """

    index: int
    proto: ModelProto
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dead: tuple[str, ...]
    words: str


def extract(
    model: ModelProto, spans: Sequence[NodeSpan], typed: ModelProto | None = None
) -> list[Segment]:
    """The segments of ``model``; ``typed``: the same with inferred types, where there are several.

    Within a segment stands what the file itself says of types: ONNX Runtime infers the rest, and
    fuses otherwise where it is told.
    """
    graph = model.graph
    if len(spans) == 1:
        inputs = tuple(info.name for info in graph.input)
        outputs = tuple(info.name for info in graph.output)
        return [Segment(0, model, inputs, outputs, (), _words(graph, spans[0]))]
    names = names_of(graph)
    parts = list(_pieces(graph, names, _with_outputs(names, spans)))
    crossing = {name for part in parts for name in (*part.inputs, *part.outputs)}
    types = border_types(model, typed or model, crossing)
    known = {**types, **{info.name: info.type for info in graph.output}}
    initialisers = {tensor.name: tensor for tensor in graph.initializer}
    sparse = {tensor.values.name: tensor for tensor in graph.sparse_initializer}
    segments = []
    for index, part in enumerate(parts):
        read = part.reads
        proto = GraphProto(name=f"{graph.name or 'model'}:{index}")
        proto.node.extend(graph.node[part.span.start : part.span.stop])
        proto.initializer.extend(tensor for name, tensor in initialisers.items() if name in read)
        proto.sparse_initializer.extend(t for name, t in sparse.items() if name in read)
        if index:
            proto.input.extend(_info(name, types) for name in part.inputs)
        else:
            proto.input.extend(info for info in graph.input if info.name in read)
        proto.output.extend(_info(name, known) for name in part.outputs)
        proto.value_info.extend(info for info in graph.value_info if info.name in part.makes)
        whole = ModelProto(
            ir_version=model.ir_version,
            opset_import=model.opset_import,
            functions=model.functions,
            graph=proto,
        )
        words = _words(graph, part.span)
        segments.append(Segment(index, whole, part.inputs, part.outputs, part.dead, words))
    return segments


@dataclass(frozen=True, slots=True)
class _Piece:
    """What a span of nodes reads and makes; ``inputs``, ``outputs``, ``dead`` as in Segment."""

    span: NodeSpan
    reads: Collection[str]
    makes: Collection[str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dead: tuple[str, ...]


def _pieces(graph: GraphProto, names: NodeNames, spans: Iterable[NodeSpan]) -> Iterator[_Piece]:
    last_use = names.last_use
    produced = [info.name for info in graph.input]
    for span in spans:
        makes = dict.fromkeys(chain.from_iterable(names.makes[span.start : span.stop]))
        reads = set(chain.from_iterable(names.reads[span.start : span.stop]))
        inputs = tuple(name for name in produced if name in reads and name not in makes)
        outputs = tuple(name for name in makes if last_use.get(name, -1) >= span.stop)
        crossing = dict.fromkeys((*produced, *outputs))
        dead = tuple(
            name for name in crossing if last_use.get(name, -1) < span.stop and name in produced
        )
        produced = [name for name in crossing if name not in dead]
        yield _Piece(span, reads, makes, inputs, outputs, dead)


def _with_outputs(names: NodeNames, spans: Sequence[NodeSpan]) -> Iterator[NodeSpan]:
    """Spans of which something is read behind them: others are joined with the next one.

    ONNX Runtime runs nothing without an output.
    """
    start, predicted_ns = 0, 0.0
    for span in spans:
        predicted_ns += span.predicted_ns
        made = chain.from_iterable(names.makes[start : span.stop])
        if any(names.last_use.get(name, -1) >= span.stop for name in made):
            yield NodeSpan(start, span.stop, predicted_ns)
            start, predicted_ns = span.stop, 0.0


def normalise(model: ModelProto) -> None:
    """What never changes becomes an initialiser, so that every segment that reads it has it.

    Constant nodes are hoisted. Before version 4 of the format initialisers are listed as inputs,
    which they are not.
    """
    graph = model.graph
    constant = []
    for position, node in enumerate(graph.node):
        tensor = _constant_tensor(node)
        if tensor is not None:
            hoisted = graph.initializer.add()
            hoisted.CopyFrom(tensor)
            hoisted.name = node.output[0]
            constant.append(position)
    for position in reversed(constant):
        del graph.node[position]
    if constant:
        _drop_earlier(graph)
    if (model.ir_version or 4) < 4:
        constants = constants_of(graph)
        inputs = [info for info in graph.input if info.name not in constants]
        del graph.input[:]
        graph.input.extend(inputs)


def _drop_earlier(graph: GraphProto) -> None:
    """Of initialisers of one name the last counts, a hoisted constant before all."""
    last = {tensor.name: position for position, tensor in enumerate(graph.initializer)}
    for position in reversed(range(len(graph.initializer))):
        if last[graph.initializer[position].name] != position:
            del graph.initializer[position]


def _constant_tensor(node: NodeProto) -> TensorProto | None:
    """The value of a Constant node; None for other nodes and for sparse or several values."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    if len(node.attribute) != 1 or len(node.output) != 1 or not node.output[0]:
        return None
    (attribute,) = node.attribute
    if attribute.name == "value" and attribute.HasField("t"):
        return attribute.t
    if attribute.name == "value_float":
        return helper.make_tensor("", TensorProto.FLOAT, (), [attribute.f])
    if attribute.name == "value_int":
        return helper.make_tensor("", TensorProto.INT64, (), [attribute.i])
    if attribute.name == "value_floats":
        return helper.make_tensor("", TensorProto.FLOAT, [len(attribute.floats)], attribute.floats)
    if attribute.name == "value_ints":
        return helper.make_tensor("", TensorProto.INT64, [len(attribute.ints)], attribute.ints)
    return None


def _info(name: str, types: Mapping[str, TypeProto]) -> ValueInfoProto:
    info = ValueInfoProto(name=name)
    if name in types:
        info.type.CopyFrom(types[name])
    return info


def _words(graph: GraphProto, span: NodeSpan) -> str:
    def name(position: int) -> str:
        node = graph.node[position]
        return shown(node.name or (node.output[0] if node.output else node.op_type))

    if span.stop <= span.start:
        return "no nodes"
    count = span.stop - span.start
    return f"{count} nodes, {name(span.start)} to {name(span.stop - 1)}"
