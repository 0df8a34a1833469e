"""BYTES tensors as Triton serialises them: each element behind its 4-byte length."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from brisk.errors import InvalidRequestError

_LENGTH = struct.Struct("<I")


def serialise(elements: Iterable[object]) -> bytes:
    """Elements in order (bytes, or str as UTF-8 with surrogate escapes), lengths before each."""
    parts: list[bytes] = []
    for element in elements:
        data = (
            element
            if isinstance(element, bytes)
            else str(element).encode("utf-8", "surrogateescape")
        )
        parts.append(_LENGTH.pack(len(data)))
        parts.append(data)
    return b"".join(parts)


def deserialise(data: memoryview | bytes, count: int) -> list[bytes]:
    """Exactly ``count`` elements; InvalidRequestError where ``data`` holds anything else."""
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
