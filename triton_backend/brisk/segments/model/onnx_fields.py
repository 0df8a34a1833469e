"""The fields of a serialized ONNX model, without protobuf; and why a file is no whole model, in
the same words for every reader that fails.

Standard library alone: stubs read a model's inputs and outputs without ``onnx``.
"""

from __future__ import annotations

from collections.abc import Iterator

from brisk.errors import counted

_GRAPH = 7
"""The number of the field ``graph`` in ModelProto."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

_STRANGE = "it is no protocol buffer"
_POINTER = b"version https://git-lfs"


def damage_of(data: memoryview) -> str:
    """Return what is wrong with the bytes, as far as the outermost message shows it."""
    if bytes(data[: len(_POINTER)]) == _POINTER:
        return "it is a pointer of Git LFS; `git lfs pull` brings the file"
    try:
        numbers = [number for number, _ in fields_of(data)]
    except ValueError as error:
        return str(error)
    if _GRAPH not in numbers:
        return "it has no graph or no operator set"
    return "what it holds is damaged"


def fields_of(data: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Yield numbers and values of a message's fields. Raises ValueError that says what is
    wrong."""
    position, end = 0, len(data)
    while position < end:
        key, position = _varint(data, position)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise ValueError(_STRANGE)
        if kind == _VARINT:
            integer, position = _varint(data, position)
            yield number, integer
            continue
        if kind == _BYTES:
            length, position = _varint(data, position)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(_STRANGE)
        if position + length > end:
            raise ValueError(f"it ends {counted(position + length - end, 'byte')} too early")
        yield number, data[position : position + length]
        position += length


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    result = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise ValueError("it ends inside a number")
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
    raise ValueError(_STRANGE)
