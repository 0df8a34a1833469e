"""Nodes and programs back in ONNX's own records, for running them by their definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from brisk.graph.program import Attribute, ContainerKind, Node, Program, ValueType, Variable


def node_proto(node: Node) -> onnx.NodeProto:
    """The ONNX node that a canonical node stands for."""
    proto = onnx.NodeProto(
        op_type=node.operator,
        domain=node.domain,
        name=node.name,
        input=node.inputs,
        output=node.outputs,
    )
    kinds = _attribute_kinds(node)
    for name, value in node.attributes.items():
        proto.attribute.append(_attribute_proto(name, value, kinds.get(name)))
    return proto


def graph_proto(program: Program) -> onnx.GraphProto:
    """The ONNX graph of a control-flow body, weights included."""
    graph = onnx.GraphProto(name=program.name or "body")
    graph.input.extend(_variable_proto(variable) for variable in program.inputs)
    graph.output.extend(_variable_proto(variable) for variable in program.outputs)
    for name, array in program.weights.items():
        graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    for layer in program.layers:
        graph.node.append(node_proto(layer.main))
    return graph


def operator_sets(nodes: Sequence[Node]) -> dict[str, int]:
    """The version of each domain that ``nodes`` and their bodies were written for."""
    versions: dict[str, int] = {}
    for node in nodes:
        for value in node.attributes.values():
            bodies = value if isinstance(value, tuple) else (value,)
            for body in bodies:
                if isinstance(body, Program):
                    versions.update(operator_sets([layer.main for layer in body.layers]))
        versions[node.domain] = node.version
    return versions


def _attribute_kinds(node: Node) -> dict[str, Any]:
    try:
        schema = onnx.defs.get_schema(node.operator, node.version, node.domain)
    except onnx.defs.SchemaError:
        return {}
    return {name: attribute.type.value for name, attribute in schema.attributes.items()}


def _attribute_proto(name: str, value: Attribute, kind: int | None) -> onnx.AttributeProto:
    converted: Any = value
    if isinstance(value, Program):
        converted = graph_proto(value)
    elif isinstance(value, np.ndarray):
        converted = numpy_helper.from_array(value)
    elif isinstance(value, ValueType):
        converted = _type_proto(value)
    elif isinstance(value, tuple):
        converted = [graph_proto(item) if isinstance(item, Program) else item for item in value]
    return helper.make_attribute(name, converted, attr_type=kind)


def _variable_proto(variable: Variable) -> onnx.ValueInfoProto:
    if variable.type.dtype is None:
        return onnx.ValueInfoProto(name=variable.name)
    return helper.make_value_info(variable.name, _type_proto(variable.type))


def _type_proto(value_type: ValueType) -> onnx.TypeProto:
    if value_type.dtype is None:
        return onnx.TypeProto()
    tensor = helper.make_tensor_type_proto(element_type(value_type.dtype), value_type.shape)
    if value_type.container is ContainerKind.SEQUENCE:
        return helper.make_sequence_type_proto(tensor)
    if value_type.container is ContainerKind.OPTIONAL:
        return helper.make_optional_type_proto(tensor)
    return tensor


def element_type(dtype: str) -> int:
    """ONNX's number for an element type given by its numpy or ml_dtypes name."""
    return int(_ELEMENT_TYPES[dtype])


_ELEMENT_TYPES: dict[str, int] = {
    np.dtype(helper.tensor_dtype_to_np_dtype(number)).name: number
    for number in onnx.TensorProto.DataType.values()
    if number not in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING)
} | {"string": int(onnx.TensorProto.STRING)}
