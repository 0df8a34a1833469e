"""Static types by ``onnx.shape_inference``, on graphs that hold no large tensor."""

from __future__ import annotations

import logging
from math import prod

import onnx
from google.protobuf.message import EncodeError
from onnx import GraphProto, ModelProto, ValueInfoProto, shape_inference

from brisk.graph.draft import Draft, has_body
from brisk.graph.files.proto import operator_sets, to_node_proto, to_tensor_proto
from brisk.graph.files.value_types import from_type_proto, merge, to_type_proto
from brisk.graph.operators import newest_opset, newest_version
from brisk.graph.program import UNKNOWN_TYPE, ValueType

SMALL_TENSOR_BYTES = 1024
"""Constants up to this size stay visible to inference: shape arithmetic needs their values."""

_LOGGER = logging.getLogger(__name__)
_FAILURES = (
    shape_inference.InferenceError,
    RuntimeError,
    ValueError,
    EncodeError,
    MemoryError,
)

MAX_PROPAGATED = 1 << 20
"""Elements of integer tensors that inference may keep track of: shapes have few."""

_PROPAGATING = frozenset(
    {"Add", "Cast", "Gather", "Identity", "Mul", "Slice", "Squeeze", "Sub", "Unsqueeze"}
)


def infer(model: ModelProto) -> ModelProto:
    """``model`` with the types that could be inferred; with none where inference fails."""
    for data_propagation in (True, False):
        if data_propagation and _propagated(model.graph) > MAX_PROPAGATED:
            continue
        try:
            return shape_inference.infer_shapes(model, data_prop=data_propagation)
        except _FAILURES as error:
            _LOGGER.debug("shape inference failed: %s", error)
    return model


def _propagated(graph: GraphProto) -> int:
    """An upper bound of how many elements onnx would keep track of in all of ``graph``.

    It joins the elements of all inputs of a Concat, without a limit of its own: forty that each
    join a tensor with itself take all memory there is.
    """
    elements = {tensor.name: prod(tensor.dims) for tensor in graph.initializer}
    for info in (*graph.input, *graph.value_info):
        elements[info.name] = _known_elements(info)
    total = 0
    for node in graph.node:
        sizes = [elements.get(name, 1) for name in node.input if name]
        if node.op_type == "Concat":
            made = sum(sizes)
        else:
            made = max(sizes, default=1) if node.op_type in _PROPAGATING else 1
        elements.update(dict.fromkeys(node.output, made))
        total += made if node.op_type in _PROPAGATING or node.op_type == "Concat" else 0
    return total


def _known_elements(info: ValueInfoProto) -> int:
    """Of a tensor of rank 1, the only one whose elements are kept track of; else 1."""
    dims = info.type.tensor_type.shape.dim
    return max(1, dims[0].dim_value) if len(dims) == 1 else 1


def types_of(graph: GraphProto) -> dict[str, ValueType]:
    """Types stated or inferred in ``graph`` itself (bodies excluded)."""
    return {
        info.name: from_type_proto(info.type)
        for group in (graph.value_info, graph.output, graph.input)
        for info in group
        if info.HasField("type")
    }


def is_complete(draft: Draft) -> bool:
    """True where every value has a type whose shape is known."""
    return all(
        not name or (draft.type_of(name).dtype and draft.type_of(name).shape is not None)
        for layer in draft.layers
        for name in layer.outputs
    )


def is_settled(draft: Draft) -> bool:
    """True where every value is a tensor of a known dtype whose sizes are numbers or the inputs'.

    Inference has nothing to add then.
    """
    stated = {
        size
        for variable in draft.inputs
        for size in variable.type.shape or ()
        if isinstance(size, str)
    }
    types = draft.types
    for layer in draft.layers:
        for name in layer.outputs:
            known = types.get(name, UNKNOWN_TYPE) if name else None
            if known is None:
                continue
            if not known.dtype or known.shape is None:
                return False
            for size in known.shape:
                if not isinstance(size, int) and size not in stated:
                    return False
    return True


def refine_types(draft: Draft) -> None:
    """Infer again on the canonical nodes, adding what is new to ``draft.types``.

    Nodes with bodies and nodes kept in an old form are left out; their outputs keep the types
    they have.
    """
    graph = GraphProto(name="refined")
    produced: set[str] = set()
    for layer in draft.layers:
        for node in layer.nodes:
            if has_body(node) or node.version != newest_version(node.operator, node.domain):
                continue
            graph.node.append(to_node_proto(node))
            produced.update(node.outputs)
    used = {name for node in graph.node for name in node.input if name}
    for name in sorted(used | produced):
        array = draft.weights.get(name)
        if array is not None and array.nbytes <= SMALL_TENSOR_BYTES:
            graph.initializer.append(to_tensor_proto(array, name))
            continue
        proto = to_type_proto(draft.type_of(name))
        if proto is not None:
            group = graph.value_info if name in produced or array is not None else graph.input
            group.append(ValueInfoProto(name=name, type=proto))
    versions = {"": newest_opset()}
    for node in graph.node:
        if node.domain:
            versions[node.domain] = newest_version(node.op_type, node.domain)
    model = ModelProto(ir_version=onnx.IR_VERSION, opset_import=operator_sets(versions))
    model.graph.CopyFrom(graph)
    for name, inferred in types_of(infer(model).graph).items():
        if inferred is not UNKNOWN_TYPE and name not in draft.weights:
            draft.types[name] = merge(draft.type_of(name), inferred)
