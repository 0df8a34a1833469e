"""Static types from ONNX's messages."""

from __future__ import annotations

from onnx import TensorShapeProto, TypeProto

from brisk.graph.files.element_types import name_of_element
from brisk.graph.program import UNKNOWN_TYPE, ContainerKind, Dimension, ValueType

_ANONYMOUS = frozenset({"", "?", "-1", "None", "none", "unk"})
"""The names that exporters give to several sizes that need not be equal."""


def _dimension(dim: TensorShapeProto.Dimension, inferred: bool) -> Dimension:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    name = dim.dim_param
    return None if name in _ANONYMOUS or (_is_numbered(name) and not inferred) else name


def is_unnamed(dim: TensorShapeProto.Dimension) -> bool:
    """Whether the size is unknown and no name says which other sizes equal it."""
    return _dimension(dim, inferred=False) is None


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
    """Return the static type. ``inferred``: whether this process inferred it, so that names
    ``unk__0`` and so on mean one size each."""
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
