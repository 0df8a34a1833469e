"""Takes the constants out of a model: arrays by graph, and what is left to infer types of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    ValueInfoProto,
    helper,
)

from brisk.errors import InvalidModelError
from brisk.graph.files.proto import (
    forget_anonymous,
    from_type_proto,
    to_tensor_proto,
    to_type_proto,
    type_of_array,
)
from brisk.graph.files.tensors import densify, read_tensor
from brisk.graph.operators import domain_of
from brisk.graph.program import ValueType

SMALL_TENSOR_BYTES = 1024
"""Constants up to this size stay visible to inference: shape arithmetic needs their values."""


def bodies_of(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


@dataclass(slots=True)
class Extraction:
    """Constants of a model's graphs, bodies included, and what the model says of their types.

    Parts are numbered: a graph says its own in ``doc_string``, which survives shape inference
    (names may repeat between bodies).
    """

    directory: Path | None
    parts: list[tuple[dict[str, np.ndarray], dict[str, ValueType]]] = field(default_factory=list)

    def of(self, graph: GraphProto) -> tuple[dict[str, np.ndarray], dict[str, ValueType]]:
        """Constants and claims, which count where inference does not know."""
        return self.parts[int(graph.doc_string)]

    def strip(self, graph: GraphProto, raw: Mapping[str, memoryview]) -> None:
        """Take the constants and claims out of ``graph``, which changes.

        ``raw``: data that was detached from its initialisers, by their names.
        """
        table: dict[str, np.ndarray] = {}
        graph.doc_string = str(len(self.parts))
        claims = {info.name: from_type_proto(info.type) for info in graph.value_info}
        claims |= {info.name: _output_claim(info) for info in graph.output}
        self.parts.append((table, claims))
        for tensor in graph.initializer:
            array = read_tensor(tensor, self.directory, raw.get(tensor.name))
            self._keep(table, tensor.name, array)
        for sparse in graph.sparse_initializer:
            self._keep(table, sparse.values.name, densify(sparse, self.directory))
        for place in reversed(range(len(graph.node))):
            node = graph.node[place]
            if node.op_type == "Constant" and not domain_of(node.domain):
                self._keep(table, node.output[0] if node.output else "", self._constant(node))
                del graph.node[place]
            else:
                for body in bodies_of(node):
                    self.strip(body, {})
        for emptied in ("initializer", "sparse_initializer", "value_info"):
            graph.ClearField(emptied)
        for info in graph.input:
            forget_anonymous(info.type)
        for info in graph.output:
            if info.type.HasField("tensor_type"):
                info.type.tensor_type.ClearField("shape")
        stated = {info.name for info in graph.input}
        for name, array in table.items():
            if array.nbytes <= SMALL_TENSOR_BYTES:
                graph.initializer.append(to_tensor_proto(array, name))
            elif name not in stated:
                kind = to_type_proto(type_of_array(array))
                graph.value_info.append(ValueInfoProto(name=name, type=kind))

    def _keep(self, table: dict[str, np.ndarray], name: str, array: np.ndarray) -> None:
        if not name:
            raise InvalidModelError("an initialiser or Constant node has no name")
        if name in table:
            raise InvalidModelError(f"value '{name}' is defined twice (as a constant)")
        table[name] = array

    def _constant(self, node: NodeProto) -> np.ndarray:
        """The value of a Constant node, whichever of the attributes holds it."""
        label = f"Constant '{node.output[0] if node.output else node.name}'"
        if len(node.attribute) != 1:
            raise InvalidModelError(f"{label} needs exactly one attribute")
        (attribute,) = node.attribute
        value: Any = helper.get_attribute_value(attribute)
        if isinstance(value, TensorProto):
            return read_tensor(value, self.directory)
        if isinstance(value, SparseTensorProto):
            return densify(value, self.directory)
        if attribute.name not in _CONSTANTS:
            raise InvalidModelError(f"{label} has unknown attribute '{attribute.name}'")
        array = np.array(value, _CONSTANTS[attribute.name])
        if array.dtype == object:
            array = np.vectorize(bytes.decode, [object])(array)
        array.setflags(write=False)
        return array


_CONSTANTS = {
    **dict.fromkeys(("value_int", "value_ints"), np.int64),
    **dict.fromkeys(("value_float", "value_floats"), np.float32),
    **dict.fromkeys(("value_string", "value_strings"), object),
}


def _output_claim(info: ValueInfoProto) -> ValueType:
    """Exporters write the sizes of their example into outputs; only the rank is believed."""
    claim = from_type_proto(info.type)
    return replace(claim, shape=None if claim.shape is None else (None,) * len(claim.shape))
