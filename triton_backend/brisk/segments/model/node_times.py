"""The predicted run time of each node of a graph, from the sizes of what it reads and makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx
from onnx import GraphProto, ModelProto, TensorShapeProto, TypeProto

from brisk.segments.model.graph_names import NodeNames, names_of, value_types

MULTIPLICATIONS_PER_NS = 50.0
"""The speed of one thread; large float32 convolutions reach 20 to 80 with AVX2 and AVX-512."""

BYTES_PER_NS = 8.0
"""The speed at which memory is read and written anew."""

IMAGE_RANK = 4
"""The rank of tensors that have a blocked layout: batch, channels, height, width."""

LARGEST_COUNT = 1 << 62
"""The most elements that are reckoned with."""

UNKNOWN_BATCH, UNKNOWN_SIZE = 1, 128
"""The sizes assumed for a first dimension, and for another one, that is not known before a request
comes."""

CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "QLinearConv", "FusedConv"})

_PRODUCTS = frozenset({"MatMul", "Gemm", "MatMulInteger", "FusedMatMul"})


def predicted_times_ns(typed: ModelProto) -> list[float]:
    """Return the time of each node of a model whose types are inferred, on one thread."""
    sized = with_image_sizes(typed) or typed
    return node_times_ns(typed.graph, names_of(typed.graph), value_types(sized.graph))


def with_image_sizes(model: ModelProto) -> ModelProto | None:
    """Return the model with types inferred for images of UNKNOWN_SIZE, so that sizes after strides
    are known; None: it declares its images' sizes itself, or such images do not fit it."""
    if not _unknown_sizes(model):
        return None
    sized = ModelProto()
    sized.CopyFrom(model)
    del sized.graph.value_info[:]
    for dim in _unknown_sizes(sized):
        dim.dim_value = UNKNOWN_SIZE
    try:
        return onnx.shape_inference.infer_shapes(sized, data_prop=False)
    except Exception:  # noqa: BLE001  # images of this size do not fit the model
        return None


def _unknown_sizes(model: ModelProto) -> list[TensorShapeProto.Dimension]:
    """Return the unknown dimensions of images that are inputs, except each first dimension."""
    dims = [info.type.tensor_type.shape.dim for info in model.graph.input]
    images = [each for each in dims if len(each) == IMAGE_RANK]
    return [dim for each in images for dim in each[1:] if dim.dim_value <= 0]


def sizes_of(kind: TypeProto | None) -> list[int]:
    if kind is None or not kind.HasField("tensor_type"):
        return []
    return _assumed(dim.dim_value for dim in kind.tensor_type.shape.dim)


def _assumed(sizes: Iterable[int]) -> list[int]:
    """Return ``sizes`` with assumed ones in place of those that are not known."""
    listed = list(sizes)
    if min(listed, default=1) > 0:
        return listed
    return [
        size if size > 0 else (UNKNOWN_SIZE if axis else UNKNOWN_BATCH)
        for axis, size in enumerate(listed)
    ]


def count_of(sizes: Sequence[int]) -> int:
    """Return the count of elements; bounded, since a file may claim any."""
    count = 1
    for size in sizes:
        count = min(count * size, LARGEST_COUNT)
    return count


def node_times_ns(
    graph: GraphProto, names: NodeNames, types: Mapping[str, TypeProto]
) -> list[float]:
    """Return the time of each node on one thread, from the sizes of what it reads and makes."""
    weights = {tensor.name: tensor for tensor in graph.initializer}

    def sizes(name: str) -> list[int]:
        weight = weights.get(name)
        return sizes_of(types.get(name)) if weight is None else _assumed(weight.dims)

    def read(position: int, place: int) -> list[int]:
        names = graph.node[position].input
        return sizes(names[place]) if place < len(names) else []

    times_ns = []
    for position, operator in enumerate(names.operators):
        elements = sum(count_of(sizes(name)) for name in names.makes[position])
        work = 0
        if operator in CONVOLUTIONS:
            work = elements * count_of(read(position, 3 if operator == "QLinearConv" else 1)[1:])
        elif operator in _PRODUCTS:
            work = elements * (read(position, 0)[-1:] or [1])[0]
        elif operator == "ConvTranspose":
            work = count_of(read(position, 0)) * count_of(read(position, 1)[1:])
        times_ns.append(4 * elements / BYTES_PER_NS + work / MULTIPLICATIONS_PER_NS)
    return times_ns
