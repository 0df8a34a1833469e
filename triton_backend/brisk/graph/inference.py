"""Static types by ``onnx.shape_inference``, on graphs that hold no large tensor."""

from __future__ import annotations

import logging
from math import prod

import onnx
from google.protobuf.message import EncodeError
from onnx import GraphProto, ModelProto, ValueInfoProto, helper, shape_inference

from brisk.graph.draft import Draft
from brisk.graph.files.proto import (
    complete,
    from_type_proto,
    to_node_proto,
    to_tensor_proto,
    to_type_proto,
)
from brisk.graph.files.sources import SMALL_TENSOR_BYTES
from brisk.graph.operators import newest_version
from brisk.graph.program import ValueType

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
    {"Add", "Cast", "Concat", "Gather", "Identity", "Mul", "Slice", "Squeeze", "Sub", "Unsqueeze"}
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
        dims = info.type.tensor_type.shape.dim  # elements of other ranks are not kept track of
        elements[info.name] = max(1, dims[0].dim_value) if len(dims) == 1 else 1
    total = 0
    for node in graph.node:
        sizes = [elements.get(name, 1) for name in node.input if name] or [1]
        made = 1
        if node.op_type in _PROPAGATING:
            made = sum(sizes) if node.op_type == "Concat" else max(sizes)
            total += made
        elements.update(dict.fromkeys(node.output, made))
    return total


def types_of(graph: GraphProto) -> dict[str, ValueType]:
    """Types stated or inferred in ``graph`` itself (bodies excluded)."""
    return {
        info.name: from_type_proto(info.type, inferred=True)
        for group in (graph.value_info, graph.output, graph.input)
        for info in group
        if info.HasField("type")
    }


def is_settled(draft: Draft) -> bool:
    """True where every value has a dtype and sizes that are numbers or the inputs' own.

    Inference has nothing to add then.
    """
    known = {size for variable in draft.inputs for size in variable.type.shape or ()} - {None}
    types = [draft.type_of(name) for node in draft for name in node.outputs if name]
    return all(
        each.dtype is not None
        and each.shape is not None
        and all(isinstance(size, int) or size in known for size in each.shape)
        for each in types
    )


def infer_types(draft: Draft) -> None:
    """Infer on the canonical nodes, adding what is new to ``draft.types``.

    Nodes with bodies and nodes kept in an old form are left out; their outputs keep the types
    they have.
    """
    nodes = [
        node
        for node in draft
        if not node.bodies and node.version == newest_version(node.operator, node.domain)
    ]
    graph = GraphProto(name="draft", node=[to_node_proto(node) for node in nodes])
    produced = {name for node in nodes for name in node.outputs}
    for name in sorted({*produced, *(name for node in nodes for name in node.inputs)} - {""}):
        array = draft.weights.get(name)
        if array is not None and array.nbytes <= SMALL_TENSOR_BYTES:
            graph.initializer.append(to_tensor_proto(array, name))
        elif (proto := to_type_proto(draft.type_of(name))) is not None:
            group = graph.value_info if name in produced or array is not None else graph.input
            group.append(ValueInfoProto(name=name, type=proto))
    versions = {node.domain: newest_version(node.operator, node.domain) for node in nodes}
    versions[""] = onnx.defs.onnx_opset_version()
    opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    model = ModelProto(graph=graph, ir_version=onnx.IR_VERSION, opset_import=opsets)
    for name, inferred in types_of(infer(model).graph).items():
        if name not in draft.weights:
            draft.types[name] = complete(inferred, draft.type_of(name))
