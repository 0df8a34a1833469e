"""Inputs and outputs of a model in ONNX Runtime's own format (``.ort``), a FlatBuffer.

It is read without a library, since Triton's stub has none: a few fields of ``ort.fbs`` in ONNX
Runtime's sources are enough. The graph is optimised already; only ONNX Runtime computes it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from brisk.errors import InvalidModelError

_IDENTIFIER = b"ORTM"
_TENSOR = 1
"""The number of a tensor in the union TypeInfoValue."""
_VALUE, _PARAMETER = 1, 2
"""The numbers of a size and of its name in the enumeration DimensionValueType."""

MOST_READ, MOST_READ_BYTES = 4, 128 << 20
"""The most that is read of a file, as a multiple of its size and in bytes: several parts may refer
to one text, as to a value's name, but not each part to all others. ONNX Runtime's files take up to
1.2 times their size, and 60 MB for 100,000 nodes with names of 170 characters."""
_ELEMENT_BYTES = 12
"""The bytes of a small table, and of what refers to it."""


class OrtTensor(NamedTuple):
    """``element``: its TensorProto type. ``shape``: an integer, a symbol's name, or None for an
    unknown size; None where the rank is unknown.
    """

    name: str
    element: int
    shape: tuple[int | str | None, ...] | None


class OrtSignature(NamedTuple):
    """``inputs`` without those that are initialisers, which have their values."""

    inputs: tuple[OrtTensor, ...]
    outputs: tuple[OrtTensor, ...]


def is_ort_format(data: bytes | memoryview) -> bool:
    """Whether a file that begins with ``data``, 8 bytes or more, has this format."""
    return bytes(data[4:8]) == _IDENTIFIER


def read_ort_signature(data: memoryview) -> OrtSignature:
    """Return the model's inputs and outputs. Raises InvalidModelError that says what is wrong; the
    caller names the file.

    No reference to ``data`` is kept, even if it raises.
    """
    problem = None
    try:
        return _signature(data)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        problem = str(error)
    raise InvalidModelError(f"not a complete model of ONNX Runtime's format: {problem}")


def read_ort_operators(data: memoryview) -> set[str]:
    """Return the operators of all nodes, including those of subgraphs; none if the file is
    incomplete."""
    found: set[str] = set()
    seen: set[int] = set()

    def unseen(tables: Iterable[_Table | None]) -> Iterator[_Table]:
        for each in tables:
            if each is not None and each.position not in seen:
                seen.add(each.position)
                yield each

    try:
        left = [*unseen([_graph_of(data)])]
        while left:
            for node in unseen(left.pop().tables(2)):
                found.add(node.text(5))
                for attribute in unseen(node.tables(10)):
                    left += unseen([attribute.optional_table(7)])
                    left += unseen(attribute.tables(12))
    except (struct.error, IndexError, UnicodeDecodeError, ValueError):
        return set()
    return found


def _graph_of(data: memoryview) -> _Table:
    session = _Table(_FlatBuffer(data), _u32(data, 0))
    return session.table(1, "a model").table(7, "a graph")


def _signature(data: memoryview) -> OrtSignature:
    graph = _graph_of(data)
    values = {each.text(0): each for each in graph.tables(1)}
    initialised = {each.text(0) for each in graph.tables(0)}
    names = [name for name in graph.texts(5) if name not in initialised]
    return OrtSignature(
        tuple(_tensor(name, values) for name in names),
        tuple(_tensor(name, values) for name in graph.texts(6)),
    )


def _tensor(name: str, values: dict[str, _Table]) -> OrtTensor:
    if name not in values:
        raise ValueError(f"nothing is said of '{name}'")
    kind = values[name].table(2, f"the type of '{name}'")
    if kind.number(1, "<B") != _TENSOR:
        raise ValueError(f"'{name}' is not a tensor; Triton serves tensors only")
    tensor = kind.table(2, f"the type of '{name}'")
    shape = tensor.optional_table(1)
    sizes = None if shape is None else tuple(_size(each) for each in shape.tables(0))
    return OrtTensor(name, tensor.number(0, "<i"), sizes)


def _size(dimension: _Table) -> int | str | None:
    value = dimension.optional_table(0)
    if value is None:
        return None
    kind = value.number(0, "<b")
    if kind == _VALUE:
        return value.number(1, "<q")
    return value.text(2) or None if kind == _PARAMETER else None


class _FlatBuffer:
    """A file's bytes, and how many of them may still be read, those read again included."""

    __slots__ = ("data", "left")

    def __init__(self, data: memoryview) -> None:
        self.data, self.left = data, min(MOST_READ * len(data), MOST_READ_BYTES)

    def charge(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise ValueError(
                "its parts refer to the same ones too often, expected at most "
                f"{min(MOST_READ * len(self.data), MOST_READ_BYTES)} bytes in all"
            )

    def text(self, place: int) -> str:
        length = _u32(self.data, place)
        if place + 4 + length > len(self.data):
            raise ValueError("it ends too early")
        self.charge(4 + length)
        return bytes(self.data[place + 4 : place + 4 + length]).decode()


class _Table:
    """A table of a FlatBuffer: its fields have numbers, and absent ones are 0 or nothing."""

    __slots__ = ("_buffer", "_data", "position")

    def __init__(self, buffer: _FlatBuffer, position: int) -> None:
        self._buffer, self._data, self.position = buffer, buffer.data, position

    def number(self, field: int, form: str) -> int:
        place = self._place(field)
        return 0 if place is None else int(struct.unpack_from(form, self._data, place)[0])

    def text(self, field: int) -> str:
        place = self._target(field)
        return "" if place is None else self._buffer.text(place)

    def texts(self, field: int) -> Iterator[str]:
        for place in self._elements(field):
            yield self._buffer.text(place)

    def table(self, field: int, words: str) -> _Table:
        found = self.optional_table(field)
        if found is None:
            raise ValueError(f"it lacks {words}")
        return found

    def optional_table(self, field: int) -> _Table | None:
        place = self._target(field)
        return None if place is None else _Table(self._buffer, place)

    def tables(self, field: int) -> Iterator[_Table]:
        for place in self._elements(field):
            yield _Table(self._buffer, place)

    def _place(self, field: int) -> int | None:
        """Return the position of a field's value."""
        layout = self.position - _at(self._data, self.position, "<i")
        if 4 + 2 * field >= _at(self._data, layout, "<H"):
            return None
        offset = _at(self._data, layout + 4 + 2 * field, "<H")
        return self.position + offset if offset else None

    def _target(self, field: int) -> int | None:
        """Return the position that a field refers to."""
        place = self._place(field)
        return None if place is None else place + _u32(self._data, place)

    def _elements(self, field: int) -> Iterator[int]:
        """Return the positions that a vector's elements refer to."""
        start = self._target(field)
        if start is not None:
            count = _u32(self._data, start)
            if start + 4 + 4 * count > len(self._data):
                raise ValueError("it ends too early")
            self._buffer.charge(_ELEMENT_BYTES * count)
            for place in range(start + 4, start + 4 + 4 * count, 4):
                yield place + _u32(self._data, place)


def _u32(data: memoryview, place: int) -> int:
    return _at(data, place, "<I")


def _at(data: memoryview, place: int, form: str) -> int:
    if place < 0:
        raise ValueError("it refers to what is before it")
    return int(struct.unpack_from(form, data, place)[0])
