"""Takes the constants out of a model: arrays by graph, and a light skeleton of the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from brisk.errors import InvalidModelError
from brisk.graph.files.proto import to_tensor_proto
from brisk.graph.files.tensors import densify, read_tensor
from brisk.graph.files.value_types import (
    from_type_proto,
    to_type_proto,
    type_of_array,
)
from brisk.graph.operators import domain_of
from brisk.graph.program import ContainerKind, ValueType

SMALL_TENSOR_BYTES = 1024
"""Constants up to this size stay visible to inference: shape arithmetic needs their values."""

_BODIES = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


@dataclass(slots=True)
class Extraction:
    """Constants of a model's graphs, bodies included.

    ``tables[i]`` holds the constants of the graph whose skeleton says ``i`` in its
    ``doc_string`` (which survives shape inference; names may repeat between bodies).
    """

    directory: Path | None
    raw: Mapping[str, memoryview]
    """Data of initialisers of the main graph that was detached from the messages."""
    tables: list[dict[str, np.ndarray]] = field(default_factory=list)
    claims: list[dict[str, ValueType]] = field(default_factory=list)
    """What the model itself says of the types in each graph, where inference does not know."""

    def model(self, model: ModelProto) -> ModelProto:
        """The skeleton of ``model``, which stays as it is."""
        skeleton = ModelProto(
            ir_version=model.ir_version or onnx.IR_VERSION,
            opset_import=model.opset_import,
            functions=model.functions,
        )
        self._cut(model.graph, skeleton.graph)
        return skeleton

    def table_of(self, skeleton: GraphProto) -> dict[str, np.ndarray]:
        return self.tables[int(skeleton.doc_string)]

    def claims_of(self, skeleton: GraphProto) -> dict[str, ValueType]:
        return self.claims[int(skeleton.doc_string)]

    def _cut(self, graph: GraphProto, skeleton: GraphProto) -> None:
        """Make the skeleton of ``graph``, in place: messages are copied once."""
        table: dict[str, np.ndarray] = {}
        raw = self.raw if not self.tables else {}
        skeleton.name, skeleton.doc_string = graph.name, str(len(self.tables))
        self.tables.append(table)
        self.claims.append(
            {info.name: from_type_proto(info.type) for info in graph.value_info}
            | {info.name: _output_claim(info) for info in graph.output}
        )
        skeleton.input.extend(map(_without_anonymous_sizes, graph.input))
        skeleton.output.extend(map(_without_shape, graph.output))
        for tensor in graph.initializer:
            self._keep(
                table, tensor.name, read_tensor(tensor, self.directory, raw.get(tensor.name))
            )
        for sparse in graph.sparse_initializer:
            self._keep(table, sparse.values.name, densify(sparse, self.directory))
        for node in graph.node:
            if node.op_type == "Constant" and not domain_of(node.domain):
                name = node.output[0] if node.output else ""
                self._keep(table, name, self._constant(node))
            elif any(attribute.type in _BODIES for attribute in node.attribute):
                skeleton.node.append(self._with_bodies(node))
            else:
                skeleton.node.append(node)
        stated = {info.name for info in graph.input}
        for name, array in table.items():
            if array.nbytes <= SMALL_TENSOR_BYTES:
                skeleton.initializer.append(to_tensor_proto(array, name))
            elif name not in stated:
                info = ValueInfoProto(name=name, type=to_type_proto(type_of_array(array)))
                skeleton.value_info.append(info)

    def _keep(self, table: dict[str, np.ndarray], name: str, array: np.ndarray) -> None:
        if not name:
            raise InvalidModelError("an initialiser or Constant node has no name")
        if name in table:
            raise InvalidModelError(f"value '{name}' is defined twice (as a constant)")
        table[name] = array

    def _with_bodies(self, node: NodeProto) -> NodeProto:
        copy = NodeProto(
            op_type=node.op_type,
            domain=node.domain,
            name=node.name,
            input=node.input,
            output=node.output,
        )
        for attribute in node.attribute:
            if attribute.HasField("g"):
                body = AttributeProto(name=attribute.name, type=AttributeProto.GRAPH)
                self._cut(attribute.g, body.g)
                copy.attribute.append(body)
            elif attribute.graphs:
                bodies = AttributeProto(name=attribute.name, type=AttributeProto.GRAPHS)
                for item in attribute.graphs:
                    self._cut(item, bodies.graphs.add())
                copy.attribute.append(bodies)
            else:
                copy.attribute.append(attribute)
        return copy

    def _constant(self, node: NodeProto) -> np.ndarray:
        """The value of a Constant node, whichever of the attributes holds it."""
        label = f"Constant '{node.output[0] if node.output else node.name}'"
        if len(node.attribute) != 1:
            raise InvalidModelError(f"{label} needs exactly one attribute")
        (attribute,) = node.attribute
        if attribute.name == "value":
            return read_tensor(attribute.t, self.directory)
        if attribute.name == "sparse_value":
            return densify(attribute.sparse_tensor, self.directory)
        if attribute.name not in _CONSTANTS:
            raise InvalidModelError(f"{label} has unknown attribute '{attribute.name}'")
        array = _CONSTANTS[attribute.name](attribute)
        array.setflags(write=False)
        return array


_CONSTANTS: dict[str, Callable[[AttributeProto], np.ndarray]] = {
    "value_int": lambda proto: np.array(proto.i, np.int64),
    "value_ints": lambda proto: np.array(proto.ints, np.int64),
    "value_float": lambda proto: np.array(proto.f, np.float32),
    "value_floats": lambda proto: np.array(proto.floats, np.float32),
    "value_string": lambda proto: np.array(proto.s.decode(), object),
    "value_strings": lambda proto: np.array([item.decode() for item in proto.strings], object),
}


def _output_claim(info: ValueInfoProto) -> ValueType:
    """Exporters write the sizes of their example into outputs; only the rank is believed."""
    claim = from_type_proto(info.type)
    return replace(claim, shape=None if claim.shape is None else (None,) * len(claim.shape))


def _without_shape(info: ValueInfoProto) -> ValueInfoProto:
    """``info`` of a tensor with its element type alone."""
    if info.type.WhichOneof("value") != "tensor_type":
        return info
    kind = helper.make_tensor_type_proto(info.type.tensor_type.elem_type, None)
    return ValueInfoProto(name=info.name, type=kind)


def _without_anonymous_sizes(info: ValueInfoProto) -> ValueInfoProto:
    """``info`` without sizes that only look like numbers or like one shared name."""
    kind = from_type_proto(info.type)
    if kind.container is not ContainerKind.TENSOR or kind.dtype is None:
        return info
    return ValueInfoProto(name=info.name, type=to_type_proto(kind))
