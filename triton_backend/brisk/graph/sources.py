"""Takes the constants out of a model: arrays by graph, and a light skeleton of the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

from brisk.errors import InvalidModelError
from brisk.graph.inference import SMALL_TENSOR_BYTES
from brisk.graph.operators import domain_of
from brisk.graph.proto import to_tensor_proto
from brisk.graph.tensors import densify, read_tensor
from brisk.graph.value_types import ANONYMOUS_DIMENSIONS, to_type_proto, type_of_array


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

    def model(self, model: ModelProto) -> ModelProto:
        """The skeleton of ``model``, which stays as it is."""
        skeleton = ModelProto(
            ir_version=model.ir_version or onnx.IR_VERSION,
            opset_import=model.opset_import,
            functions=model.functions,
        )
        skeleton.graph.CopyFrom(self.graph(model.graph))
        return skeleton

    def table_of(self, skeleton: GraphProto) -> dict[str, np.ndarray]:
        return self.tables[int(skeleton.doc_string)]

    def graph(self, graph: GraphProto) -> GraphProto:
        table: dict[str, np.ndarray] = {}
        raw = self.raw if not self.tables else {}
        skeleton = GraphProto(name=graph.name, doc_string=str(len(self.tables)))
        self.tables.append(table)
        for name, info in (("input", graph.input), ("output", graph.output)):
            getattr(skeleton, name).extend(_without_anonymous_dimensions(item) for item in info)
        skeleton.value_info.extend(map(_without_anonymous_dimensions, graph.value_info))
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
            elif any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
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
        return skeleton

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
                body.g.CopyFrom(self.graph(attribute.g))
                copy.attribute.append(body)
            elif attribute.graphs:
                bodies = AttributeProto(name=attribute.name, type=AttributeProto.GRAPHS)
                bodies.graphs.extend(self.graph(item) for item in attribute.graphs)
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
        kind = attribute.name
        if kind == "value":
            array = read_tensor(attribute.t, self.directory)
        elif kind == "sparse_value":
            array = densify(attribute.sparse_tensor, self.directory)
        elif kind == "value_int":
            array = np.array(attribute.i, np.int64)
        elif kind == "value_ints":
            array = np.array(attribute.ints, np.int64)
        elif kind == "value_float":
            array = np.array(attribute.f, np.float32)
        elif kind == "value_floats":
            array = np.array(attribute.floats, np.float32)
        elif kind == "value_string":
            array = np.array(attribute.s.decode(), object)
        elif kind == "value_strings":
            array = np.array([item.decode() for item in attribute.strings], object)
        else:
            raise InvalidModelError(f"{label} has unknown attribute '{kind}'")
        array.setflags(write=False)
        return array


def _without_anonymous_dimensions(info: ValueInfoProto) -> ValueInfoProto:
    """``info`` without sizes that only look like numbers or like one shared name."""
    if info.type.WhichOneof("value") != "tensor_type":
        return info
    dims = info.type.tensor_type.shape.dim
    if not any(_is_anonymous(dim) for dim in dims):
        return info
    copy = ValueInfoProto()
    copy.CopyFrom(info)
    for dim in copy.type.tensor_type.shape.dim:
        if _is_anonymous(dim):
            dim.Clear()
    return copy


def _is_anonymous(dim: onnx.TensorShapeProto.Dimension) -> bool:
    if dim.HasField("dim_value"):
        return bool(dim.dim_value < 0)
    return dim.HasField("dim_param") and dim.dim_param in ANONYMOUS_DIMENSIONS
