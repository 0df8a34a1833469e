"""Segments as models of their own: nodes, the weights that they read, and boundary tensors.

ONNX Runtime refuses a value whose sizes are not those that an input of a model declares, where
within one model it only warns. So a boundary tensor declares only what is certain; but it does
declare that, since fusions and blocked layouts are chosen by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper

from brisk.paths import shown
from brisk.segments.model.cutting import NodeSpan
from brisk.segments.model.graph_names import (
    WITH_BODIES,
    NodeNames,
    constants_of,
    names_of,
    reads_of,
    value_types,
)
from brisk.segments.source import SegmentSpec

_SURE_SIZES = frozenset(
    {
        *("Conv", "BatchNormalization", "LRN", "InstanceNormalization"),
        *("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
        *("Relu", "LeakyRelu", "PRelu", "Clip", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish"),
        *("Elu", "Selu", "Softplus", "Add", "Sub", "Mul", "Div", "Sum", "Concat", "Identity"),
        *("Dropout", "Unsqueeze", "Flatten", "Transpose", "Gemm", "MatMul", "Softmax", "Cast"),
    }
)
"""Operators whose output sizes follow from those of their inputs by one rule that all
implementations share. ONNX's inference and ONNX Runtime's kernels have not always agreed on
others, such as resizing, nor on pools that round up.
"""

_ROUNDS_UP = frozenset({"MaxPool", "AveragePool"})
"""The pooling operators that may round up."""

_ROWS = "brisk:rows:"
"""The prefix of the name given to a first dimension that has a number: equal numbers have equal
names, as ONNX Runtime takes sizes of one name for equal.
"""

_NO_SHAPE, _RANK, _SIZES = range(3)
"""The levels of certainty about a value's shape; a node's outputs have at most that of each
input."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment as an ONNX model of its own."""

    spec: SegmentSpec
    proto: ModelProto


def extract(
    model: ModelProto,
    spans: Sequence[NodeSpan],
    typed: ModelProto | None = None,
    names: NodeNames | None = None,
) -> list[Segment]:
    """Return the segments of ``model``. ``typed``: the model with inferred types, if there are
    several segments. ``names``: of its graph, if they are known.

    A segment keeps the types that the file itself declares inside it: ONNX Runtime infers the
    rest, and fuses differently if more is declared.
    """
    graph = model.graph
    if len(spans) == 1:
        constants = constants_of(graph)
        inputs = tuple(info.name for info in graph.input if info.name not in constants)
        outputs = tuple(info.name for info in graph.output)
        return [Segment(SegmentSpec(0, inputs, outputs, (), _words(graph, spans[0])), model)]
    names = names or names_of(graph)
    pieces = list(_pieces(graph, names, _with_outputs(names, spans)))
    crossing = {name for spec, *_ in pieces[1:] for name in spec.inputs}
    types = _border_types(model, names, typed or model, crossing)
    all_types = {**types, **{info.name: info.type for info in graph.output}}
    initialisers = {tensor.name: tensor for tensor in graph.initializer}
    sparse = {tensor.values.name: tensor for tensor in graph.sparse_initializer}
    segments = []
    for spec, span, read in pieces:
        whole = ModelProto(
            ir_version=model.ir_version,
            opset_import=model.opset_import,
            functions=model.functions,
        )
        proto = whole.graph
        proto.name = f"{graph.name or 'model'}:{spec.index}"
        proto.node.extend(graph.node[span.start : span.stop])
        proto.initializer.extend(tensor for name, tensor in initialisers.items() if name in read)
        proto.sparse_initializer.extend(t for name, t in sparse.items() if name in read)
        if spec.index:
            proto.input.extend(_info(name, types) for name in spec.inputs)
        proto.input.extend(
            info
            for info in graph.input
            if info.name in read and (info.name in names.constants or not spec.index)
        )
        proto.output.extend(_info(name, all_types) for name in spec.outputs)
        makes = set(chain.from_iterable(names.makes[span.start : span.stop]))
        proto.value_info.extend(info for info in graph.value_info if info.name in makes)
        segments.append(Segment(spec, whole))
    return segments


def _pieces(
    graph: GraphProto, names: NodeNames, spans: Iterable[NodeSpan]
) -> Iterator[tuple[SegmentSpec, NodeSpan, Collection[str]]]:
    """Yield each span with its boundary tensors, as a spec, and the names that its nodes read."""
    last_use = names.last_use
    produced = [info.name for info in graph.input if info.name not in names.constants]
    for index, span in enumerate(spans):
        makes = dict.fromkeys(chain.from_iterable(names.makes[span.start : span.stop]))
        reads = set(chain.from_iterable(names.reads[span.start : span.stop]))
        inputs = tuple(name for name in produced if name in reads and name not in makes)
        outputs = tuple(name for name in makes if last_use.get(name, -1) >= span.stop)
        crossing = dict.fromkeys((*produced, *outputs))
        dead = tuple(
            name for name in crossing if last_use.get(name, -1) < span.stop and name in produced
        )
        produced = [name for name in crossing if name not in dead]
        yield SegmentSpec(index, inputs, outputs, dead, _words(graph, span)), span, reads


def _with_outputs(names: NodeNames, spans: Sequence[NodeSpan]) -> Iterator[NodeSpan]:
    """Yield spans of which a later node reads a value: others are joined with the next one.

    ONNX Runtime runs no model without an output.
    """
    start, predicted_ns = 0, 0.0
    for span in spans:
        predicted_ns += span.predicted_ns
        outputs = chain.from_iterable(names.makes[start : span.stop])
        if any(names.last_use.get(name, -1) >= span.stop for name in outputs):
            yield NodeSpan(start, span.stop, predicted_ns)
            start, predicted_ns = span.stop, 0.0


def normalise(model: ModelProto) -> None:
    """Make every constant an initializer, so that each segment that reads it has it.

    Constant nodes are hoisted. Before version 4 of the format, initializers are listed as inputs,
    too; these inputs are removed. So are initializers that no node reads, which ONNX Runtime would
    take for inputs.
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
        _drop_unread(graph)


def _drop_unread(graph: GraphProto) -> None:
    read = {name for node in graph.node for name in reads_of(node)}
    read |= {info.name for info in graph.output}
    for position in reversed(range(len(graph.initializer))):
        if graph.initializer[position].name not in read:
            del graph.initializer[position]


def _drop_earlier(graph: GraphProto) -> None:
    """Keep only the last initializer of each name; hoisted constants come after all others."""
    last = {tensor.name: position for position, tensor in enumerate(graph.initializer)}
    for position in reversed(range(len(graph.initializer))):
        if last[graph.initializer[position].name] != position:
            del graph.initializer[position]


def _constant_tensor(node: NodeProto) -> TensorProto | None:
    """Return the value of a Constant node; None for other nodes and for sparse or several
    values."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    if len(node.attribute) != 1 or len(node.output) != 1 or not node.output[0]:
        return None
    (attribute,) = node.attribute
    if attribute.name == "value" and attribute.HasField("t"):
        return attribute.t
    element, values, shape = {
        "value_float": (TensorProto.FLOAT, [attribute.f], []),
        "value_int": (TensorProto.INT64, [attribute.i], []),
        "value_floats": (TensorProto.FLOAT, attribute.floats, [len(attribute.floats)]),
        "value_ints": (TensorProto.INT64, attribute.ints, [len(attribute.ints)]),
    }.get(attribute.name, (None, None, None))
    return None if element is None else helper.make_tensor("", element, shape, values)


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
    if count == 1:
        return f"1 node, {name(span.start)}"
    return f"{count} nodes, {name(span.start)} to {name(span.stop - 1)}"


def _border_types(
    model: ModelProto, names: NodeNames, typed: ModelProto, crossing: Collection[str]
) -> Mapping[str, TypeProto]:
    """Return the types that the boundary tensors ``crossing`` declare: element type, and what is
    certain of the shape.

    ``typed``: the model with inferred types; shapes in it may follow from what the file itself
    declares of values, so they are inferred anew if it does.

    Sizes are numbers, or names that the model's inputs have. A first dimension has no number: jobs
    go on with some rows of a batch.
    """
    types = value_types(typed.graph, crossing)
    read = set(chain.from_iterable(names.reads))
    if model.graph.value_info or any(info.name in read for info in model.graph.output):
        shapes = _inferred_alone(model, crossing)
    else:
        shapes = types
    sure = _sureness(model.graph, names)
    own = {
        dim.dim_param
        for info in model.graph.input
        for dim in info.type.tensor_type.shape.dim
        if dim.dim_param
    }
    return {
        name: _border_type(types[name], shapes.get(name), sure.get(name, _NO_SHAPE), own)
        for name in crossing
        if name in types
    }


def _inferred_alone(model: ModelProto, wanted: Collection[str]) -> Mapping[str, TypeProto]:
    """Return the types of ``wanted`` that follow from inputs and weights; the file's declarations
    of other values are not trusted."""
    bare = ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    for info in bare.graph.output:
        info.type.tensor_type.ClearField("shape")
    try:
        inferred = onnx.shape_inference.infer_shapes(bare, data_prop=False)
    except Exception:  # noqa: BLE001  # then nothing is sure
        return {}
    return value_types(inferred.graph, wanted)


def _sureness(graph: GraphProto, names: NodeNames) -> Mapping[str, int]:
    """Return how much is certain of each value's shape (``_NO_SHAPE`` to ``_SIZES``), by its
    name."""
    sure: dict[str, int] = {}
    for node, operator, reads, makes in zip(
        graph.node, names.operators, names.reads, names.makes, strict=True
    ):
        sureness = _of_node(node, operator)
        for name in reads:
            sureness = min(sureness, sure.get(name, _SIZES))
        for name in makes:
            sure[name] = sureness
    sure.update((info.name, _SIZES) for info in graph.input)
    return sure


def _of_node(node: NodeProto, operator: str) -> int:
    if operator in WITH_BODIES or node.domain not in ("", "ai.onnx"):
        return _NO_SHAPE
    if operator not in _SURE_SIZES:
        return _RANK
    if operator not in _ROUNDS_UP:
        return _SIZES
    rounds_up = any(each.name == "ceil_mode" and each.i for each in node.attribute)
    return _RANK if rounds_up else _SIZES


def _border_type(kind: TypeProto, shape: TypeProto | None, sure: int, own: set[str]) -> TypeProto:
    border = TypeProto()
    border.CopyFrom(kind)
    if not border.HasField("tensor_type"):
        return border
    border.tensor_type.ClearField("shape")
    if sure == _NO_SHAPE or shape is None or not shape.tensor_type.HasField("shape"):
        return border
    sizes = shape.tensor_type.shape.dim
    dims = border.tensor_type.shape.dim
    border.tensor_type.shape.SetInParent()
    for axis, size in enumerate(sizes):
        dim = dims.add()
        if sure < _SIZES:
            continue
        if size.dim_param in own:
            dim.dim_param = size.dim_param
        elif size.dim_value > 0 and axis:
            dim.dim_value = size.dim_value
        elif size.dim_value > 0:
            dim.dim_param = f"{_ROWS}{size.dim_value}"
    return border
