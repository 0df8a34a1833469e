"""Why a file is no whole ONNX model, in the same words whoever has failed to read it.

Standard library alone: stubs read a model's inputs and outputs without ``onnx``.
"""

from __future__ import annotations

from collections.abc import Iterator

from brisk.errors import counted

_GRAPH = 7
"""The field's number in ModelProto."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

_STRANGE = "it is no protocol buffer"
_POINTER = b"version https://git-lfs"


def damage_of(data: memoryview) -> str:
    """What is wrong with the bytes, as far as the outermost message tells."""
    if bytes(data[: len(_POINTER)]) == _POINTER:
        return "it is a pointer of Git LFS; `git lfs pull` brings the file"
    try:
        numbers = list(_numbers(data))
    except ValueError as error:
        return str(error)
    if _GRAPH not in numbers:
        return "it has no graph or no operator set"
    return "what it holds is damaged"


def _numbers(data: memoryview) -> Iterator[int]:
    """Of the message's fields. Raises ValueError that says what is wrong."""
    position, end = 0, len(data)
    while position < end:
        key, position = _varint(data, position)
        number, kind = key >> 3, key & 7
        if not number or kind not in (_VARINT, _FIXED64, _BYTES, _FIXED32):
            raise ValueError(_STRANGE)
        length, position = _varint(data, position) if kind in (_BYTES, _VARINT) else (0, position)
        position += {_VARINT: 0, _FIXED64: 8, _BYTES: length, _FIXED32: 4}[kind]
        if position > end:
            raise ValueError(f"it ends {counted(position - end, 'byte')} too early")
        yield number


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
