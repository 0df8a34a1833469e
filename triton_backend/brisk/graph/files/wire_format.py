"""The removal of large weights' raw data from a serialised ONNX model, without copying it.

Parsing a model through protobuf copies every weight, and reading ``raw_data`` from the parsed
message copies it again. The layout of a message is simple (field tag, length, bytes), so the few
fields around the weights are walked here and only what is left is given to protobuf. Some
exporters write weights as Constant nodes, which become the initialisers that they are. Source: the
protobuf encoding guide; field numbers from ``onnx.proto``.
"""

from __future__ import annotations

from collections.abc import Iterator

from brisk.errors import counted

VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""The kinds of fields, which are the lower bits of their tags."""

_MODEL_GRAPH = 7 << 3 | _BYTES
_GRAPH_NODE, _GRAPH_INITIALIZER = 1 << 3 | _BYTES, 5 << 3 | _BYTES
_NODE_OUTPUT, _NODE_OPERATOR = 2 << 3 | _BYTES, 4 << 3 | _BYTES
_NODE_ATTRIBUTE, _NODE_DOMAIN = 5 << 3 | _BYTES, 7 << 3 | _BYTES
_ATTRIBUTE_NAME, _ATTRIBUTE_TENSOR = 1 << 3 | _BYTES, 5 << 3 | _BYTES
_TENSOR_NAME, _TENSOR_RAW_DATA = 8 << 3 | _BYTES, 9 << 3 | _BYTES

_STRANGE = "it is no protocol buffer"


class MalformedMessage(ValueError):
    """The bytes do not follow the encoding; the text says why."""


def varint(data: memoryview, position: int) -> tuple[int, int]:
    """Return the number at ``position``, and where it ends. Raises MalformedMessage, and
    IndexError if the message ends in it."""
    result = shift = 0
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7
        if shift > 63:
            raise MalformedMessage(_STRANGE)


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append((value & 0x7F) | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def fields(data: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Yield (tag, start of tag, start of content, end) of a message's fields. A tag is the
    field's number, shifted by 3 bits, and its kind. Raises MalformedMessage."""
    position, size = 0, len(data)
    try:
        while position < size:
            start = position
            tag, content = varint(data, position)
            kind = tag & 7
            if tag < 8:
                raise MalformedMessage(_STRANGE)
            if kind == _BYTES:
                length, content = varint(data, content)
                position = content + length
            elif kind == VARINT:
                _, position = varint(data, content)
            elif kind in (_FIXED64, _FIXED32):
                position = content + (8 if kind == _FIXED64 else 4)
            else:
                raise MalformedMessage(_STRANGE)
            if position > size:
                raise MalformedMessage(f"it ends {counted(position - size, 'byte')} too early")
            yield tag, start, content, position
    except IndexError:
        raise MalformedMessage("it ends inside a number") from None


def _field(tag: int, parts: list[memoryview | bytes]) -> list[memoryview | bytes]:
    size = sum(len(part) for part in parts)
    return [_encode_varint(tag), _encode_varint(size), *parts]


def detach_large_tensors(
    data: memoryview, threshold_bytes: int
) -> tuple[bytes, dict[int, memoryview]]:
    """Return the model without large weights' raw data, and that data.

    Large Constant nodes of the main graph are initialisers of it then. The data is keyed by the
    initialiser's position; the views keep ``data`` alive. Raises MalformedMessage if the bytes are
    no message.
    """
    detached: dict[int, memoryview] = {}
    model: list[memoryview | bytes] = []
    count = 0  # of initialisers: protobuf merges a graph that comes in several parts
    for tag, start, content, end in fields(data):
        if tag == _MODEL_GRAPH:
            graph, count = _graph(data[content:end], threshold_bytes, count, detached)
            model += _field(tag, graph)
        else:
            model.append(data[start:end])
    return b"".join(model), detached


def _graph(
    graph: memoryview, threshold_bytes: int, position: int, detached: dict[int, memoryview]
) -> tuple[list[memoryview | bytes], int]:
    """Return the graph's fields, and the position behind the last initialiser. ``position``: of
    the first one."""
    kept: list[memoryview | bytes] = []
    for tag, start, content, end in fields(graph):
        is_large = end - content >= threshold_bytes
        constant = _constant(graph[content:end]) if tag == _GRAPH_NODE and is_large else None
        if constant is not None:
            name, tensor = constant
            without_data = _tensor(tensor, position, detached, skipped=_TENSOR_NAME)
            named = [*without_data, *_field(_TENSOR_NAME, [name])]
            kept += _field(_GRAPH_INITIALIZER, named)
        elif tag == _GRAPH_INITIALIZER and is_large:
            kept += _field(tag, _tensor(graph[content:end], position, detached))
        else:
            kept.append(graph[start:end])
        position += tag == _GRAPH_INITIALIZER or constant is not None
    return kept, position


def _constant(node: memoryview) -> tuple[memoryview, memoryview] | None:
    """Return output and tensor of a Constant node whose tensor has raw data; None for other
    nodes."""
    outputs, operators, attributes, domains = _contents(
        node, _NODE_OUTPUT, _NODE_OPERATOR, _NODE_ATTRIBUTE, _NODE_DOMAIN
    )
    is_standard = all(bytes(domain) in (b"", b"ai.onnx") for domain in domains)
    if operators != [b"Constant"] or not is_standard or len(attributes) != 1:
        return None
    names, tensors = _contents(attributes[0], _ATTRIBUTE_NAME, _ATTRIBUTE_TENSOR)
    if len(outputs) != 1 or not outputs[0] or names != [b"value"] or len(tensors) != 1:
        return None
    (data,) = _contents(tensors[0], _TENSOR_RAW_DATA)
    return (outputs[0], tensors[0]) if len(data) == 1 else None


def _contents(message: memoryview, *tags: int) -> list[list[memoryview]]:
    """Return for each tag the contents of the fields with it, in order."""
    contents: dict[int, list[memoryview]] = {tag: [] for tag in tags}
    for tag, _, content, end in fields(message):
        if tag in contents:
            contents[tag].append(message[content:end])
    return list(contents.values())


def _tensor(
    tensor: memoryview, position: int, detached: dict[int, memoryview], skipped: int | None = None
) -> list[memoryview | bytes]:
    """Return the fields except the raw data and those with the tag ``skipped``."""
    kept: list[memoryview | bytes] = []
    for tag, start, content, end in fields(tensor):
        if tag == _TENSOR_RAW_DATA:
            detached[position] = tensor[content:end]
        elif tag != skipped:
            kept.append(tensor[start:end])
    return kept
