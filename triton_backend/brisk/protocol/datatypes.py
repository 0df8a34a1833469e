"""Triton's datatypes: their names and sizes, numpy's and ONNX's names, and the layout of BYTES."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from brisk.errors import InvalidRequestError

if TYPE_CHECKING:
    import numpy as np


class Datatype(NamedTuple):
    """An element type of tensors, with its names."""

    name: str
    """Triton's name, which records carry (``FP32`` …)."""
    element_name: str
    """The name of the element type in a program (``float32`` …)."""

    @property
    def numpy(self) -> np.dtype:
        """Return numpy's type of an element in shared memory.

        BF16 is transferred as uint16 bit patterns, because numpy has no such type.
        """
        return _numpy_types()[self.name]

    @property
    def item_bytes(self) -> int:
        """The bytes of an element; 0 for BYTES, whose elements vary."""
        return 0 if self.numpy.hasobject else self.numpy.itemsize


@functools.cache
def _numpy_types() -> dict[str, np.dtype]:
    import numpy as np  # late: starting a server needs only the names of datatypes

    others = {"BF16": "uint16", "BYTES": "O"}
    return {
        name: np.dtype(others.get(name, datatype.element_name))
        for name, datatype in DATATYPES.items()
    }


DATATYPES = {
    name: Datatype(name, element)
    for name, element in (
        *(("BOOL", "bool"), ("UINT8", "uint8"), ("UINT16", "uint16"), ("UINT32", "uint32")),
        *(("UINT64", "uint64"), ("INT8", "int8"), ("INT16", "int16"), ("INT32", "int32")),
        *(("INT64", "int64"), ("FP16", "float16"), ("FP32", "float32"), ("FP64", "float64")),
        *(("BF16", "bfloat16"), ("BYTES", "string")),
    )
}
BY_ELEMENT_NAME = {datatype.element_name: datatype for datatype in DATATYPES.values()}


def config_name(datatype: Datatype) -> str:
    """Return a datatype's name in ``config.pbtxt``: ``TYPE_FP32``, ``TYPE_STRING`` …"""
    return "TYPE_STRING" if datatype.name == "BYTES" else f"TYPE_{datatype.name}"


def from_config_name(name: str) -> Datatype | None:
    """Return the datatype of a name ``TYPE_…``; None if the name is unknown."""
    if name == "TYPE_STRING":
        return DATATYPES["BYTES"]
    return DATATYPES.get(name.removeprefix("TYPE_"))


# BYTES tensors as Triton serializes them: each element behind its 4-byte length.

_LENGTH = struct.Struct("<I")


def serialize_strings(elements: Iterable[object]) -> bytes:
    """Serialize a BYTES tensor: elements in order, each after its 4-byte length. An element is
    bytes, or text as UTF-8 with surrogate escapes."""
    parts: list[bytes] = []
    for element in elements:
        if not isinstance(element, bytes):
            element = str(element).encode("utf-8", "surrogateescape")
        parts += (_LENGTH.pack(len(element)), element)
    return b"".join(parts)


def deserialize_strings(data: memoryview | bytes, count: int) -> list[bytes]:
    """Return the elements of a serialized BYTES tensor. Raises InvalidRequestError if ``data``
    does not hold exactly ``count``."""
    elements: list[bytes] = []
    position, end = 0, len(data)
    for _ in range(count):
        if position + 4 > end:
            raise InvalidRequestError(
                f"a BYTES tensor ends after {len(elements)} of {count} elements"
            )
        (length,) = _LENGTH.unpack_from(data, position)
        position += 4
        if position + length > end:
            raise InvalidRequestError(
                f"element {len(elements)} of a BYTES tensor claims {length} bytes, "
                f"{end - position} are left"
            )
        elements.append(bytes(data[position : position + length]))
        position += length
    if position != end:
        raise InvalidRequestError(
            f"a BYTES tensor of {count} elements has {end - position} bytes too many"
        )
    return elements
