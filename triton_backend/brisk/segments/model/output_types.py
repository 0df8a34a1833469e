"""The types of a model's outputs by ``onnx``'s shape inference, as a process of its own.

``python -m brisk.segments.model.output_types FILE`` prints a JSON object: by output, its element
type and its sizes, null if nothing is known. A size is a number, ``batch``: the first one of the
inputs, ``input``: another one that the inputs decide, or null. The caller (``brisk.stub.config``)
has no ``onnx``, and survives a model that crashes inference.
"""

from __future__ import annotations

import json
import logging
import sys
from math import prod
from pathlib import Path
from typing import TypeAlias

from google.protobuf.message import EncodeError
from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto, helper, shape_inference

from brisk.graph.files.proto import from_type_proto
from brisk.graph.program import ContainerKind
from brisk.segments.model.model_file import read_model_file

_BATCH, _INPUT = "batch", "input"

_LOGGER = logging.getLogger(__name__)
_FAILURES = (
    shape_inference.InferenceError,
    RuntimeError,
    ValueError,
    EncodeError,
    MemoryError,
)

MAX_PROPAGATED = 1 << 20
"""The most elements of integer tensors that inference may keep track of: shapes have few."""

_PROPAGATING = frozenset(
    {"Add", "Cast", "Concat", "Gather", "Identity", "Mul", "Slice", "Squeeze", "Sub", "Unsqueeze"}
)

Size: TypeAlias = "int | str | None"


def output_types(model: ModelProto) -> dict[str, tuple[str | None, list[Size] | None]]:
    """Return element type and sizes by output. ``model`` is changed.

    Shapes that the file states between inputs and outputs are left out, since inference would keep
    them: exporters give one size many names.
    """
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    needed = [info for info in graph.input if info.name not in constants]
    _name_sizes(needed)
    for info in graph.value_info:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
        else:  # to clear a field of another kind's message would make a tensor of it
            info.ClearField("type")
    names = [info.name for info in graph.output]
    del graph.output[:]
    graph.output.extend(ValueInfoProto(name=name) for name in names)
    _name_counts(graph)
    types: dict[str, tuple[str | None, list[Size] | None]] = {}
    for info in infer(model).graph.output:
        kind = from_type_proto(info.type, inferred=True)
        if kind.container is ContainerKind.TENSOR:
            sizes = None if kind.shape is None else [_said(size) for size in kind.shape]
            types[info.name] = kind.dtype, sizes
    return types


def _name_sizes(inputs: list[ValueInfoProto]) -> None:
    """Give every dynamic size of the inputs a name that says what it is."""
    shapes = [info.type.tensor_type.shape.dim for info in inputs]
    batches = {shape[0].dim_param for shape in shapes if shape} - {""}
    for number, shape in enumerate(shapes):
        for axis, size in enumerate(shape):
            if not size.HasField("dim_value") or size.dim_value < 0:
                is_batch = axis == 0 or size.dim_param in batches
                own = size.dim_param or f"{number} {axis}"
                size.dim_param = _BATCH if is_batch else f"{_INPUT} {own}"


def _name_counts(graph: GraphProto) -> None:
    """Name the sizes that depend on values, with names other than the batch's."""
    shapes: dict[str, list[Size]] = {}
    for number, node in enumerate(graph.node):
        count = f"{_INPUT} count {number}"
        if node.op_type == "NonZero":
            shapes[node.output[0]] = [None, count]
        elif node.op_type == "NonMaxSuppression":
            shapes[node.output[0]] = [count, 3]
    infos = {info.name: info for info in (*graph.value_info, *graph.output)}
    for name, shape in shapes.items():
        info = infos.get(name) or graph.value_info.add()
        info.CopyFrom(helper.make_tensor_value_info(name, TensorProto.INT64, shape))


def _said(size: Size) -> Size:
    """Return the size; None for a name that inference itself makes up, which says nothing."""
    if not isinstance(size, str):
        return size
    word = size.partition(" ")[0]
    return word if word in (_BATCH, _INPUT) else None


def infer(model: ModelProto) -> ModelProto:
    """Return ``model`` with the types that could be inferred; with none if inference fails."""
    for data_propagation in (True, False):
        if data_propagation and _propagated(model.graph) > MAX_PROPAGATED:
            continue
        try:
            return shape_inference.infer_shapes(model, data_prop=data_propagation)
        except _FAILURES as error:
            _LOGGER.debug("shape inference failed: %s", error)
    return model


def _propagated(graph: GraphProto) -> int:
    """Return an upper bound of how many elements onnx would keep track of in all of ``graph``.

    It joins the elements of all inputs of a Concat, without a limit of its own: forty that each
    join a tensor with itself exhaust the memory.
    """
    elements = {tensor.name: prod(tensor.dims) for tensor in graph.initializer}
    for info in (*graph.input, *graph.value_info):
        dims = info.type.tensor_type.shape.dim  # elements of other ranks are not kept track of
        elements[info.name] = max(1, dims[0].dim_value) if len(dims) == 1 else 1
    total = 0
    for node in graph.node:
        sizes = [elements.get(name, 1) for name in node.input if name] or [1]
        count = 1
        if node.op_type in _PROPAGATING:
            count = sum(sizes) if node.op_type == "Concat" else max(sizes)
            total += count
        elements.update(dict.fromkeys(node.output, count))
    return total


if __name__ == "__main__":
    json.dump(output_types(read_model_file(Path(sys.argv[1])).proto), sys.stdout)
