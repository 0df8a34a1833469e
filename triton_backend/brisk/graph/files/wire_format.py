"""The removal of large weights' raw data from a serialised ONNX model, without copying it.

Parsing a model through protobuf copies every weight, and reading ``raw_data`` from the parsed
message copies it again. The layout of a message is simple (field tag, length, bytes), so the few
fields around the weights are walked here and only what is left is given to protobuf. Some
exporters write weights as Constant nodes, which become the initialisers that they are. Source: the
protobuf encoding guide; field numbers from ``onnx.proto``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

MODEL_GRAPH = 7
GRAPH_NODE, GRAPH_INITIALIZER = 1, 5
NODE_OUTPUT, NODE_OPERATOR, NODE_ATTRIBUTE, NODE_DOMAIN = 2, 4, 5, 7
ATTRIBUTE_NAME, ATTRIBUTE_TENSOR = 1, 5
TENSOR_NAME, TENSOR_RAW_DATA = 8, 9

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
    """Return the model without large weights' raw data, and that data.

    Large Constant nodes of the main graph are initialisers of it then. The data is keyed by the
    initialiser's position; the views keep ``data`` alive. Raises MalformedMessage if the bytes are
    no message.
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
    """Return the graph's fields, and the position behind the last initialiser. ``position``: of
    the first one."""
    fields: list[memoryview | bytes] = []
    for number, start, content, end in _fields(graph):
        is_large = end - content >= threshold_bytes
        constant = _constant(graph[content:end]) if number == GRAPH_NODE and is_large else None
        if constant is not None:
            name, tensor = constant
            without_data = _tensor(tensor, position, detached, skipped=TENSOR_NAME)
            named = [*without_data, *_field(TENSOR_NAME, [name])]
            fields += _field(GRAPH_INITIALIZER, named)
        elif number == GRAPH_INITIALIZER and is_large:
            fields += _field(number, _tensor(graph[content:end], position, detached))
        else:
            fields.append(graph[start:end])
        position += number == GRAPH_INITIALIZER or constant is not None
    return fields, position


def _constant(node: memoryview) -> tuple[memoryview, memoryview] | None:
    """Return output and tensor of a Constant node whose tensor has raw data; None for other
    nodes."""
    outputs, operators, attributes, domains = _contents(
        node, NODE_OUTPUT, NODE_OPERATOR, NODE_ATTRIBUTE, NODE_DOMAIN
    )
    is_standard = all(bytes(domain) in (b"", b"ai.onnx") for domain in domains)
    if operators != [b"Constant"] or not is_standard or len(attributes) != 1:
        return None
    names, tensors = _contents(attributes[0], ATTRIBUTE_NAME, ATTRIBUTE_TENSOR)
    if len(outputs) != 1 or not outputs[0] or names != [b"value"] or len(tensors) != 1:
        return None
    (data,) = _contents(tensors[0], TENSOR_RAW_DATA)
    return (outputs[0], tensors[0]) if len(data) == 1 else None


def _contents(message: memoryview, *numbers: int) -> list[list[memoryview]]:
    """Return for each number the contents of the fields of that number, in order."""
    contents: dict[int, list[memoryview]] = {number: [] for number in numbers}
    for number, _, content, end in _fields(message):
        if number in contents:
            contents[number].append(message[content:end])
    return list(contents.values())


def _tensor(
    tensor: memoryview, position: int, detached: dict[int, memoryview], skipped: int | None = None
) -> list[memoryview | bytes]:
    """Return the fields except the raw data and those of the number ``skipped``."""
    fields: list[memoryview | bytes] = []
    for number, start, content, end in _fields(tensor):
        if number == TENSOR_RAW_DATA:
            detached[position] = tensor[content:end]
        elif number != skipped:
            fields.append(tensor[start:end])
    return fields
