"""Static types, between ONNX's TypeProto, numpy arrays and ``ValueType``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from onnx import TypeProto, helper

from brisk.graph.files.element_types import element_of_dtype, name_of_dtype, name_of_element
from brisk.graph.program import UNKNOWN_TYPE, ContainerKind, Dimension, ValueType

_ANONYMOUS = frozenset({"", "?", "-1", "None", "none", "unk"})
"""Names that exporters give to several sizes that need not be equal."""


def type_of_array(array: np.ndarray) -> ValueType:
    return ValueType(name_of_dtype(array.dtype), tuple(array.shape))


def _dimension(dim: onnx.TensorShapeProto.Dimension, inferred: bool) -> Dimension:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    name = dim.dim_param
    return None if name in _ANONYMOUS or (_is_numbered(name) and not inferred) else name


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
    try:
        element = element_of_dtype(value.dtype)
    except KeyError:
        return None
    tensor = helper.make_tensor_type_proto(element, value.shape)
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
