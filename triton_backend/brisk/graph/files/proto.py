"""Brisk's records and ONNX's messages: static types both ways, programs as what
``onnx.reference`` and shape inference read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import (
    AttributeProto,
    GraphProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from brisk.errors import UnsupportedOperatorError
from brisk.graph.files.element_types import element_of_dtype, name_of_dtype, name_of_element
from brisk.graph.program import (
    UNKNOWN_TYPE,
    Attribute,
    ContainerKind,
    Dimension,
    Node,
    Program,
    ValueType,
)

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

_ANONYMOUS = frozenset({"", "?", "-1", "None", "none", "unk"})
"""Names that exporters give to several sizes that need not be equal."""


def type_of_array(array: np.ndarray) -> ValueType:
    return ValueType(name_of_dtype(array.dtype), tuple(array.shape))


def _dimension(dim: onnx.TensorShapeProto.Dimension, inferred: bool) -> Dimension:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    name = dim.dim_param
    return None if name in _ANONYMOUS or (_is_numbered(name) and not inferred) else name


def forget_anonymous(proto: TypeProto) -> None:
    """Clear sizes of a tensor that only look like numbers or like one shared name."""
    for dim in proto.tensor_type.shape.dim if proto.HasField("tensor_type") else ():
        if _dimension(dim, inferred=False) is None:
            dim.Clear()


def _is_numbered(size: Dimension) -> bool:
    return isinstance(size, str) and size.startswith("unk__")


_CONTAINERS = {
    "tensor_type": ContainerKind.TENSOR,
    "sequence_type": ContainerKind.SEQUENCE,
    "optional_type": ContainerKind.OPTIONAL,
    "map_type": ContainerKind.MAP,
    "sparse_tensor_type": ContainerKind.SPARSE,
}


def from_type_proto(proto: TypeProto, *, inferred: bool = False) -> ValueType:
    """``inferred``: by this process, whose names ``unk__0`` and so on mean one size each."""
    kind = proto.WhichOneof("value")
    if kind is None or kind not in _CONTAINERS:
        return UNKNOWN_TYPE
    message = getattr(proto, kind)
    if kind in ("tensor_type", "sparse_tensor_type"):
        is_known = message.HasField("shape")
        sizes = tuple(_dimension(dim, inferred) for dim in message.shape.dim)
        shape = sizes if is_known else None
        return ValueType(name_of_element(message.elem_type), shape, _CONTAINERS[kind])
    element = message.value_type if kind == "map_type" else message.elem_type
    inner = from_type_proto(element, inferred=inferred)
    return ValueType(inner.dtype, inner.shape, _CONTAINERS[kind])


def to_type_proto(value: ValueType) -> TypeProto | None:
    """The TypeProto of a tensor or a sequence of tensors; None where too little is known."""
    if value.dtype is None:
        return None
    tensor = helper.make_tensor_type_proto(element_of_dtype(value.dtype), value.shape)
    if value.container is ContainerKind.TENSOR:
        return tensor
    if value.container is ContainerKind.SEQUENCE:
        return helper.make_sequence_type_proto(tensor)
    return None


def without_numbered(value: ValueType) -> ValueType:
    """``value`` for readers: without names of sizes that only inference knows."""
    if value.shape is None:
        return value
    sizes = tuple(None if _is_numbered(size) else size for size in value.shape)
    return replace(value, shape=sizes)


def complete(known: ValueType, claim: ValueType) -> ValueType:
    """``known``, with what is missing taken from ``claim``, and what inference only numbered."""
    if known.dtype is None and known.shape is None:
        return claim
    shape = known.shape
    if shape is None:
        shape = claim.shape
    elif claim.shape is not None and len(claim.shape) == len(shape):
        shape = tuple(
            said if size is None or (_is_numbered(size) and said is not None) else size
            for size, said in zip(shape, claim.shape, strict=True)
        )
    return ValueType(known.dtype or claim.dtype, shape, known.container)


def to_tensor_proto(array: np.ndarray, name: str = "") -> TensorProto:
    """The tensor of any array a program holds, strings and 4-bit types included."""
    if array.dtype.kind in "OUS":
        return helper.make_tensor(
            name, TensorProto.STRING, array.shape, [str(item) for item in array.reshape(-1)]
        )
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def to_attribute_proto(name: str, value: Attribute, operator: str, domain: str) -> AttributeProto:
    """The attribute's message; an empty tuple takes its kind from the operator's schema."""
    made: Any = value
    kind = None
    if isinstance(value, np.ndarray):
        made = to_tensor_proto(value)
    elif isinstance(value, Program):
        made = to_graph_proto(value)
    elif isinstance(value, ValueType):
        made = to_type_proto(value)
    elif value == ():
        known = onnx.defs.get_schema(operator, domain).attributes
        stated = known[name].type.name if name in known else "INTS"
        kind = AttributeProto.AttributeType.Value(stated)
    return helper.make_attribute(name, made, attr_type=kind)


def to_node_proto(node: Node) -> NodeProto:
    proto = helper.make_node(
        node.operator, node.inputs, node.outputs, node.name, domain=node.domain
    )
    for name, value in node.attributes.items():
        proto.attribute.append(to_attribute_proto(name, value, node.operator, node.domain))
    return proto


def to_graph_proto(program: Program) -> GraphProto:
    """The graph of ``program``; weights become initialisers (copied)."""
    inputs, outputs = (
        [ValueInfoProto(name=each.name, type=to_type_proto(each.type)) for each in variables]
        for variables in (program.inputs, program.outputs)
    )
    return GraphProto(
        name=program.name or "graph",
        input=inputs,
        output=outputs,
        node=[to_node_proto(layer) for layer in program.layers],
        initializer=[to_tensor_proto(array, name) for name, array in program.weights.items()],
    )


def evaluator_of(node: Node) -> ReferenceEvaluator:
    """``onnx.reference`` for one node, fed with all values it reads, captures included, by name.

    Its graph declares no inputs, so that an operator defined by a function of its input types
    finds them at each run. Raises UnsupportedOperatorError where it has no such operator.
    """
    from onnx.reference import ReferenceEvaluator  # 60 ms, paid by a runtime before any load

    graph = GraphProto(name="node", node=[to_node_proto(node)])
    graph.output.extend(ValueInfoProto(name=name) for name in node.outputs)
    versions = {"": onnx.defs.onnx_opset_version(), **_operator_sets(node)}
    try:
        return ReferenceEvaluator(graph, opsets=versions)
    except NotImplementedError as error:
        raise UnsupportedOperatorError(f"{node.describe()}: {error}") from error


def _operator_sets(node: Node) -> dict[str, int]:
    """The version of each domain that ``node`` and its bodies were written for."""
    versions: dict[str, int] = {}
    for body in node.bodies:
        for each in body.layers:
            versions.update(_operator_sets(each))
    return {**versions, node.domain: node.version}
