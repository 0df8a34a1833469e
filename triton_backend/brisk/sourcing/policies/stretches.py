"""Numbered chunks of a manifest, and sets of them.

Chunks are numbered through all files, like their bytes in a copy's ``progress``. A set of chunks
is an integer whose bit ``n`` stands for chunk ``n``: such sets are immutable, as snapshots must
be, and one instruction compares, intersects or unites 64 chunks.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from brisk.copies.local import chunk_starts
from brisk.copies.manifest import Manifest, Range
from brisk.errors import ProtocolError


class Stretch(NamedTuple):
    """The chunks from ``start`` to before ``end``."""

    start: int
    end: int

    @property
    def chunks(self) -> int:
        return self.end - self.start


def bits_of(stretch: Stretch) -> int:
    return ((1 << max(stretch.chunks, 0)) - 1) << stretch.start


def bits_of_all(stretches: Iterable[Stretch]) -> int:
    bits = 0
    for stretch in stretches:
        bits |= bits_of(stretch)
    return bits


def first_stretch(bits: int, within: Stretch, most: int) -> Stretch | None:
    """Return the first run of adjacent chunks of the set inside ``within``, at most ``most``; None
    if there is no chunk."""
    inside = (bits >> within.start) & ((1 << max(within.chunks, 0)) - 1)
    if not inside:
        return None
    skipped = (inside & -inside).bit_length() - 1
    shifted = inside >> skipped
    length = ((shifted + 1) & ~shifted).bit_length() - 1
    start = within.start + skipped
    return Stretch(start, start + min(length, most))


def stretches_of(bits: int) -> Iterator[Stretch]:
    """Yield a set as stretches, each as long as possible, in order."""
    offset = 0
    while bits:
        skipped = (bits & -bits).bit_length() - 1
        bits >>= skipped
        length = ((bits + 1) & ~bits).bit_length() - 1
        yield Stretch(offset + skipped, offset + skipped + length)
        bits >>= length
        offset += skipped + length


def pack(bits: int, count: int) -> str:
    """Return a set of chunks, of ``count`` in all, as base64 text."""
    return base64.b64encode(bits.to_bytes(-(-count // 8), "little")).decode()


def unpack(text: str, count: int) -> int:
    """Return the set that ``pack`` wrote. Raises ProtocolError if the text is no set of ``count``
    chunks."""
    length = -(-count // 8)
    if len(text) > 4 * (length + 3):
        raise ProtocolError(f"a set of {count} chunks takes {len(text)} characters")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ProtocolError(f"{text!r:.40} is no set of chunks: {error}") from error
    bits = int.from_bytes(data, "little")
    if len(data) != length or bits >> count:
        raise ProtocolError(f"{len(data)} bytes are no set of {count} chunks")
    return bits


class Layout:
    """The places of the numbered chunks of a manifest."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._starts = list(chunk_starts(manifest))

    @property
    def count(self) -> int:
        """The number of all chunks."""
        return self._starts[-1]

    def place(self, index: int) -> tuple[int, int]:
        """Return the file's number and the number of the chunk in it."""
        file = bisect_right(self._starts, index) - 1
        return file, index - self._starts[file]

    def range_of(self, index: int) -> Range:
        """Return the bytes of a chunk."""
        return self.manifest.chunk_range(*self.place(index))

    def bytes_of(self, stretch: Stretch) -> Range:
        """Return the bytes of a stretch of chunks, all of one file."""
        first, last = self.range_of(stretch.start), self.range_of(stretch.end - 1)
        return Range(first.file, first.offset, last.offset + last.size - first.offset)

    def file(self, number: int) -> Stretch:
        """Return all chunks of a file."""
        return Stretch(self._starts[number], self._starts[number + 1])

    def stretch(self, part: Range) -> Stretch:
        """Return the chunks in which bytes of a file lie."""
        chunks = self.manifest.chunks_of(part)
        start = self._starts[part.file]
        return Stretch(start + chunks.start, start + chunks.stop)

    def covered(self) -> Iterator[tuple[int, int]]:
        """Yield the chunks of the model's files that the head covers completely, in its order.

        Each comes with the number of bytes of the file ``gathered``, from its beginning, that
        include the chunk.
        """
        sizes, chunk_bytes = [file.size for file in self.manifest.files], self.manifest.chunk_bytes
        before = 0
        for part in self.manifest.head:
            end = part.offset + part.size
            for chunk in range(-(-part.offset // chunk_bytes), -(-end // chunk_bytes)):
                chunk_end = min((chunk + 1) * chunk_bytes, sizes[part.file])
                if chunk_end <= end:
                    yield self._starts[part.file] + chunk, before + chunk_end - part.offset
            before += part.size

    def size_of(self, bits: int) -> int:
        """Return the total bytes of the chunks of a set."""
        total = 0
        for number in range(len(self.manifest.files)):
            file = self.file(number)
            inside = (bits >> file.start) & ((1 << file.chunks) - 1)
            if not inside:
                continue
            total += inside.bit_count() * self.manifest.chunk_bytes
            if inside >> (file.chunks - 1):  # the last one, which may be shorter
                total -= self.manifest.chunk_bytes - self.range_of(file.end - 1).size
        return total

    @property
    def own(self) -> int:
        """The set of all chunks of the model's own files."""
        return bits_of_all(map(self.file, self.manifest.own))
