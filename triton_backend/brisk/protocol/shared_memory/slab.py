"""A piece of shared memory and what of it is free."""

from __future__ import annotations

import bisect
import mmap

PLACES = 4
"""Regions of one size that are used in turns. What the other side has read last lies in its
processor's cache, from which each line must be taken back before it is written; what it read a few
requests ago does not."""

MOST_IN_TURNS = 4 * 1024 * 1024
"""Bytes of such places: what is larger than a processor's cache is used again where it lies."""


class Slab:
    """One memfd with its free stretches, sorted by offset, never touching each other."""

    __slots__ = ("address", "descriptor", "free", "last_end", "memory", "number", "size", "used")

    def __init__(self, number: int, descriptor: int, size: int) -> None:
        """Maps ``descriptor``; OSError where that cannot be."""
        self.number = number
        self.descriptor = descriptor
        self.size = size
        self.memory = memoryview(mmap.mmap(descriptor, size))
        self.address = 0  # not looked up yet
        self.free = [(0, size)]
        self.used = 0
        self.last_end = 0

    @property
    def is_empty(self) -> bool:
        return not self.used

    def take(self, size: int) -> int | None:
        """Where one region comes after the other, ``PLACES`` in turns. Among others the lowest
        place that is free, so that no more memory is touched than is in use at once.
        """
        window = min(PLACES * size, MOST_IN_TURNS) if self.used < size else 0
        start = self.last_end if self.last_end < window else 0
        taken = self._take_from(start, size)
        return self._take_from(0, size) if taken is None and start else taken

    def _take_from(self, start: int, size: int) -> int | None:
        """The lowest place at or behind ``start``."""
        for position, (offset, length) in enumerate(self.free):
            end, place = offset + length, max(offset, start)
            if end - place >= size:
                left = [(offset, place - offset), (place + size, end - place - size)]
                self.free[position : position + 1] = [each for each in left if each[1]]
                self.last_end = place + size
                self.used += size
                return place
        return None

    def give(self, offset: int, size: int) -> None:
        self.used -= size
        position = bisect.bisect_left(self.free, (offset, 0))
        if position < len(self.free) and offset + size == self.free[position][0]:
            size += self.free.pop(position)[1]
        if position > 0 and sum(self.free[position - 1]) == offset:
            before, length = self.free[position - 1]
            self.free[position - 1] = (before, length + size)
        else:
            self.free.insert(position, (offset, size))
