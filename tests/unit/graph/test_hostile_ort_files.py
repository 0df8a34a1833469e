"""Files in ONNX Runtime's own format made to harm: parts that refer to the same ones multiply what
there is to read, which is refused or read once, in memory of the file's own order.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterable, Iterator

import pytest

from brisk import ort_format
from brisk.errors import InvalidModelError
from brisk.ort_format import OrtTensor, read_ort_operators, read_ort_signature

BOUND_BYTES = 1 << 20

Places = dict[int, int]
"""The places of a table's fields in the file, by their numbers."""


class FlatBuffer:
    """A FlatBuffer, written from its root down: each part is told who refers to it."""

    def __init__(self) -> None:
        self.data = bytearray(b"\0\0\0\0ORTM")

    def table(self, referring: Iterable[int], *fields: int) -> Places:
        layout, count = len(self.data), max(fields, default=-1) + 1
        offsets = [4 * fields.index(each) + 4 if each in fields else 0 for each in range(count)]
        self.data += struct.pack(f"<{2 + count}H", 4 + 2 * count, 4 + 4 * len(fields), *offsets)
        self.data += bytes(-len(self.data) % 4)
        self._refer(referring)
        position = len(self.data)
        self.data += struct.pack("<i", position - layout) + bytes(4 * len(fields))
        return {field: position + 4 + 4 * place for place, field in enumerate(fields)}

    def vector(self, referring: Iterable[int], count: int) -> range:
        self._refer(referring)
        start = len(self.data) + 4
        self.data += struct.pack("<I", count) + bytes(4 * count)
        return range(start, start + 4 * count, 4)

    def text(self, referring: Iterable[int], text: str) -> None:
        self._refer(referring)
        self.data += struct.pack("<I", len(text)) + text.encode()
        self.data += bytes(-len(self.data) % 4)

    def number(self, place: int, value: int) -> None:
        struct.pack_into("<I", self.data, place, value)

    def graph(self, *fields: int) -> Places:
        """The graph of the file's model."""
        session = self.table([0], 1)
        model = self.table([session[1]], 7)
        return self.table([model[7]], *fields)

    def _refer(self, places: Iterable[int]) -> None:
        for place in places:
            self.number(place, len(self.data) - place)


@pytest.fixture
def file() -> Iterator[FlatBuffer]:
    """A file that is read in bounded memory."""
    tracemalloc.start()
    try:
        yield FlatBuffer()
        assert tracemalloc.get_traced_memory()[1] < BOUND_BYTES
    finally:
        tracemalloc.stop()


def with_inputs(file: FlatBuffer, inputs: int, dimensions: int, name: str) -> None:
    """Inputs that are all the same one, with dimensions that are all the same one."""
    graph = file.graph(1, 5)
    (value,) = file.vector([graph[1]], 1)
    named = file.table([value], 0, 2)
    kind = file.table([named[2]], 1, 2)
    file.number(kind[1], 1)
    tensor = file.table([kind[2]], 0, 1)
    file.number(tensor[0], 1)
    shape = file.table([tensor[1]], 0)
    file.table(file.vector([shape[0]], dimensions))
    file.text([named[0], *file.vector([graph[5]], inputs)], name)


def test_a_file_that_is_no_bigger_than_its_parts_is_read(file: FlatBuffer) -> None:
    with_inputs(file, inputs=2, dimensions=2, name="x")
    signature = read_ort_signature(memoryview(file.data))
    assert signature.inputs == (OrtTensor("x", 1, (None, None)),) * 2
    assert signature.outputs == ()


@pytest.mark.parametrize(
    ("inputs", "dimensions", "name"),
    [(1000, 1, "x" * 10_000), (400, 400, "x")],
    ids=["names", "dimensions"],
)
def test_inputs_that_are_all_the_same_one_are_refused(
    inputs: int, dimensions: int, name: str, file: FlatBuffer
) -> None:
    with_inputs(file, inputs, dimensions, name)
    words = f"too often, expected at most {4 * len(file.data)} bytes in all"
    with pytest.raises(InvalidModelError, match=words):
        read_ort_signature(memoryview(file.data))


def test_nodes_and_attributes_that_are_all_the_same_one_are_read_once(file: FlatBuffer) -> None:
    graph = file.graph(2)
    for _ in range(2):  # the body's nodes, again and again, have bodies themselves
        node = file.table(file.vector([graph[2]], 100), 5, 10)
        file.text([node[5]], "Loop")
        attribute = file.table(file.vector([node[10]], 100), 12)
        graph = file.table(file.vector([attribute[12]], 100), 2)
    file.vector([graph[2]], 0)
    assert read_ort_operators(memoryview(file.data)) == {"Loop"}


def test_of_a_large_file_no_more_is_read_than_a_large_graph_takes(
    file: FlatBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many weights follow."""
    monkeypatch.setattr(ort_format, "MOST_READ_BYTES", 40_000)
    with_inputs(file, inputs=100, dimensions=100, name="x")
    file.data += bytes(100_000)
    with pytest.raises(InvalidModelError, match="expected at most 40000 bytes in all"):
        read_ort_signature(memoryview(file.data))
