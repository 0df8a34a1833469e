"""Static types, between ONNX's TypeProto, numpy arrays and ``ValueType``."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TypeProto, helper

from brisk.graph.files.element_types import element_of_dtype, name_of_dtype, name_of_element
from brisk.graph.program import UNKNOWN_TYPE, ContainerKind, Dimension, ValueType

ANONYMOUS_DIMENSIONS = frozenset({"", "?", "-1", "None", "none", "unk"})
"""Names that exporters give to several sizes that need not be equal."""


def is_anonymous(name: str) -> bool:
    """Whether a dimension's name identifies nothing; inference numbers its own from ``unk__0``."""
    return name in ANONYMOUS_DIMENSIONS or name.startswith("unk__")


def type_of_array(array: np.ndarray) -> ValueType:
    return ValueType(name_of_dtype(array.dtype), tuple(array.shape))


def _dimension(dim: onnx.TensorShapeProto.Dimension) -> Dimension:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return None if is_anonymous(dim.dim_param) else dim.dim_param


_CONTAINERS = {
    "sequence_type": ContainerKind.SEQUENCE,
    "optional_type": ContainerKind.OPTIONAL,
    "map_type": ContainerKind.MAP,
    "sparse_tensor_type": ContainerKind.SPARSE,
}


def from_type_proto(proto: TypeProto) -> ValueType:
    kind = proto.WhichOneof("value")
    if kind == "tensor_type" or kind == "sparse_tensor_type":
        tensor = getattr(proto, kind)
        shape = (
            tuple(_dimension(dim) for dim in tensor.shape.dim)
            if tensor.HasField("shape")
            else None
        )
        container = _CONTAINERS.get(kind, ContainerKind.TENSOR)
        return ValueType(name_of_element(tensor.elem_type), shape, container)
    if kind == "sequence_type" or kind == "optional_type":
        inner = from_type_proto(getattr(proto, kind).elem_type)
        return ValueType(inner.dtype, inner.shape, _CONTAINERS[kind])
    if kind == "map_type":
        inner = from_type_proto(proto.map_type.value_type)
        return ValueType(inner.dtype, inner.shape, ContainerKind.MAP)
    return UNKNOWN_TYPE


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


def complete(known: ValueType, claim: ValueType) -> ValueType:
    """``known``, with what is missing taken from ``claim``."""
    if known.dtype is None and known.shape is None:
        return claim
    shape = known.shape
    if shape is None:
        shape = claim.shape
    elif claim.shape is not None and len(claim.shape) == len(shape):
        shape = tuple(
            said if size is None else size for size, said in zip(shape, claim.shape, strict=True)
        )
    return ValueType(known.dtype or claim.dtype, shape, known.container)


def merge(known: ValueType, better: ValueType) -> ValueType:
    """The more informative of two types of one value, dimension by dimension."""
    if known.shape is None or better.shape is None or len(known.shape) != len(better.shape):
        shape = better.shape if better.shape is not None else known.shape
    else:
        shape = tuple(
            old if isinstance(old, int) or new is None else new
            for old, new in zip(known.shape, better.shape, strict=True)
        )
    return ValueType(better.dtype or known.dtype, shape, better.container)
