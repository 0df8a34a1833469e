"""The fields of a serialized ONNX model, without protobuf; and why a file is no whole model, in
the same words for every reader that fails.

Standard library alone: stubs read a model's inputs and outputs without ``onnx``.
"""

from __future__ import annotations

from collections.abc import Iterator

from brisk.graph.files.wire_format import VARINT, fields, varint

_GRAPH = 7
"""The number of the field ``graph`` in ModelProto."""

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
    for tag, _, content, end in fields(data):
        yield tag >> 3, varint(data, content)[0] if tag & 7 == VARINT else data[content:end]
