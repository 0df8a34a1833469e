"""ONNX messages of Brisk's records: what ``onnx.reference`` and shape inference read."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

from brisk.graph.files.value_types import to_type_proto
from brisk.graph.program import Attribute, Node, Program, ValueType, Variable


def to_tensor_proto(array: np.ndarray, name: str = "") -> TensorProto:
    """The tensor of any array a program holds, strings and 4-bit types included."""
    if array.dtype.kind in "OUS":
        return helper.make_tensor(
            name, TensorProto.STRING, array.shape, [str(item) for item in array.reshape(-1)]
        )
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def to_attribute_proto(name: str, value: Attribute, operator: str, domain: str) -> AttributeProto:
    """The attribute's message; an empty tuple takes its kind from the operator's schema."""
    if isinstance(value, np.ndarray):
        return helper.make_attribute(name, to_tensor_proto(value))
    if isinstance(value, Program):
        return helper.make_attribute(name, to_graph_proto(value))
    if isinstance(value, ValueType):
        return helper.make_attribute(name, to_type_proto(value))
    if isinstance(value, tuple) and not value:
        schema = onnx.defs.get_schema(operator, domain)
        kind = schema.attributes[name].type if name in schema.attributes else None
        kinds = AttributeProto.AttributeType
        chosen = kinds.INTS if kind is None else kinds.Value(kind.name)
        return AttributeProto(name=name, type=chosen)
    return helper.make_attribute(name, value)


def to_node_proto(node: Node) -> NodeProto:
    proto = NodeProto(
        op_type=node.operator,
        domain=node.domain,
        name=node.name,
        input=node.inputs,
        output=node.outputs,
    )
    for name, value in node.attributes.items():
        proto.attribute.append(to_attribute_proto(name, value, node.operator, node.domain))
    return proto


def _value_info(variable: Variable) -> onnx.ValueInfoProto:
    info = onnx.ValueInfoProto(name=variable.name)
    proto = to_type_proto(variable.type)
    if proto is not None:
        info.type.CopyFrom(proto)
    return info


def to_graph_proto(program: Program) -> GraphProto:
    """The graph of ``program``; weights become initialisers (copied)."""
    return GraphProto(
        name=program.name or "graph",
        input=[_value_info(variable) for variable in program.inputs],
        output=[_value_info(variable) for variable in program.outputs],
        node=[to_node_proto(layer.main) for layer in program.layers],
        initializer=[to_tensor_proto(array, name) for name, array in program.weights.items()],
    )
