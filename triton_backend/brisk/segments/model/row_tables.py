"""Weights of which a run reads only a few rows: the tables of embeddings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import NamedTuple

from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto

from brisk.graph.files.tensors import count_elements
from brisk.paths import shown
from brisk.segments.model.graph_names import names_in_bodies, names_of

LEAST_TABLE_BYTES = 4 << 20
"""The size of the smallest table: less is not worth a request of its own."""

_KINDS = {
    TensorProto.FLOAT: 4,
    TensorProto.FLOAT16: 2,
    TensorProto.INT8: 1,
    TensorProto.UINT8: 1,
}
"""Types of tables, with the bytes of an element."""

_NUMBERS = (TensorProto.INT32, TensorProto.INT64)


class NamedTable(NamedTuple):
    """A weight of which a run reads rows."""

    name: str
    """The initialiser's name."""
    ids: str
    """The name of the input that says which rows are read."""
    rows: int


def row_tables(graph: GraphProto, inputs: Collection[str]) -> Iterator[NamedTable]:
    """Yield the large initializers that are read only as the data of a ``Gather`` of rows, and
    that a session can be given in place.

    The row numbers are one of ``inputs``, as it is or widened to int64: a negative number counts
    from the end. Raises InvalidModelError for a shape that no tensor can have.
    """
    ids = _ids_of(graph, inputs)
    sizes = {each.name: each for each in graph.initializer if _is_large(each)}
    if not ids or not sizes:
        return
    uses = Counter(name for reads in names_of(graph).reads for name in reads)
    others = {info.name for info in graph.output} | names_in_bodies(graph)
    for node in graph.node:
        name = node.input[0] if len(node.input) == 2 else ""
        if name in sizes and uses[name] == 1 and name not in others and _gathers_rows(node):
            numbers = ids.get(node.input[1])
            if numbers is not None:
                yield NamedTable(name, numbers, sizes[name].dims[0])


def _is_large(tensor: TensorProto) -> bool:
    item_bytes = _KINDS.get(tensor.data_type, 0)
    if not item_bytes or len(tensor.dims) < 2:
        return False
    label = f"tensor '{shown(tensor.name)}'"
    return item_bytes * count_elements(tensor, label) >= LEAST_TABLE_BYTES


def _gathers_rows(node: NodeProto) -> bool:
    if node.op_type != "Gather" or node.domain not in ("", "ai.onnx"):
        return False
    return all(each.i == 0 for each in node.attribute if each.name == "axis")


def _ids_of(graph: GraphProto, inputs: Collection[str]) -> dict[str, str]:
    """Return the input whose row numbers a value holds, by the value's name."""
    ids_by_value = {info.name: info.name for info in graph.input if _may_number(info, inputs)}
    for node in graph.node:
        if _keeps_numbers(node) and (ids := ids_by_value.get(node.input[0])) is not None:
            ids_by_value[node.output[0]] = ids
    return ids_by_value


def _keeps_numbers(node: NodeProto) -> bool:
    if node.domain not in ("", "ai.onnx") or (len(node.input), len(node.output)) != (1, 1):
        return False
    widens = any(each.name == "to" and each.i == TensorProto.INT64 for each in node.attribute)
    return node.op_type == "Identity" or (node.op_type == "Cast" and widens)


def _may_number(info: ValueInfoProto, inputs: Collection[str]) -> bool:
    return info.name in inputs and info.type.tensor_type.elem_type in _NUMBERS
