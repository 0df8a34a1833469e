"""Detaches the raw data of large initialisers from a serialised ONNX model, without copying it.

Parsing a model through protobuf copies every weight, and reading ``raw_data`` from the parsed
message copies it again. The layout of a message is simple (field tag, length, bytes), so the
few fields around the weights are walked here and only what is left is given to protobuf.
Source: the protobuf encoding guide; field numbers from ``onnx.proto``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

MODEL_GRAPH = 7
GRAPH_INITIALIZER = 5
TENSOR_RAW_DATA = 9

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Buffer: TypeAlias = "bytes | memoryview"


class MalformedMessage(ValueError):
    """The bytes do not follow the encoding; protobuf itself will say what is wrong."""


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7
        if shift > 63:
            raise MalformedMessage("a number of more than 64 bits")


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append((value & 0x7F) | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _fields(data: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Yield (field number, start of tag, start of content, end) of a message's fields.

    The number is 0 for fields that hold no bytes: no caller wants their content.
    """
    position, size = 0, len(data)
    while position < size:
        start = position
        tag, position = _varint(data, position)
        kind = tag & 7
        content = position
        if kind == _BYTES:
            length, content = _varint(data, position)
            position = content + length
        elif kind == _VARINT:
            _, position = _varint(data, position)
        elif kind == _FIXED64:
            position += 8
        elif kind == _FIXED32:
            position += 4
        else:
            raise MalformedMessage(f"wire type {kind}")
        if position > size:
            raise MalformedMessage("a field that ends behind its message")
        yield (tag >> 3 if kind == _BYTES else 0), start, content, position


def _field(number: int, parts: list[memoryview | bytes]) -> list[memoryview | bytes]:
    size = sum(len(part) for part in parts)
    return [_encode_varint(number << 3 | _BYTES), _encode_varint(size), *parts]


def detach_large_tensors(
    data: Buffer, threshold_bytes: int
) -> tuple[bytes, dict[int, memoryview]]:
    """Return the model without large initialisers' raw data, and that data.

    The data is keyed by the initialiser's position in the main graph; the views keep ``data``
    alive. Raises MalformedMessage where the bytes are no message.
    """
    view = memoryview(data)
    detached: dict[int, memoryview] = {}
    try:
        model: list[memoryview | bytes] = []
        count = 0  # of initialisers: protobuf merges a graph that comes in several parts
        for number, start, content, end in _fields(view):
            if number == MODEL_GRAPH:
                graph, count = _graph(view[content:end], threshold_bytes, count, detached)
                model += _field(number, graph)
            else:
                model.append(view[start:end])
        return b"".join(model), detached
    except IndexError:
        raise MalformedMessage("a field that is cut off") from None


def _graph(
    graph: memoryview, threshold_bytes: int, position: int, detached: dict[int, memoryview]
) -> tuple[list[memoryview | bytes], int]:
    """``position``: of the first initialiser. Returns that behind the last one, too."""
    kept: list[memoryview | bytes] = []
    for number, start, content, end in _fields(graph):
        if number != GRAPH_INITIALIZER:
            kept.append(graph[start:end])
            continue
        if end - content < threshold_bytes:
            kept.append(graph[start:end])
        else:
            kept += _field(number, _tensor(graph[content:end], position, detached))
        position += 1
    return kept, position


def _tensor(
    tensor: memoryview, position: int, detached: dict[int, memoryview]
) -> list[memoryview | bytes]:
    kept: list[memoryview | bytes] = []
    for number, start, content, end in _fields(tensor):
        if number == TENSOR_RAW_DATA:
            detached[position] = tensor[content:end]
        else:
            kept.append(tensor[start:end])
    return kept
