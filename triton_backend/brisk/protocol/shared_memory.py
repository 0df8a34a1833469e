"""Shared memory for tensors: an owner allocates, its peer maps and reads.

Slabs are sealed memfds, passed over the socket. They have no name, so nothing remains in
``/dev/shm`` however a process ends, and ``--shm-size`` of a container does not limit them. They
cannot shrink, so reading a mapped one can never fault.
"""

from __future__ import annotations

import bisect
import fcntl
import mmap
import os
import threading
from collections.abc import Iterable
from typing import NamedTuple

from brisk.errors import ProtocolError, UnavailableError
from brisk.protocol.records import AttachSlab, DetachSlab, Region

ALIGNMENT = 64
SLAB_BYTES = 16 * 1024 * 1024
MAX_SLAB_BYTES = 64 * 1024**3

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def padded(size: int) -> int:
    """Return ``size``, rounded up to a multiple of ALIGNMENT."""
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def _room(size: int) -> int:
    return max(ALIGNMENT, padded(size))


class Slab:
    """One memfd with the list of its free ranges, sorted by offset and never adjacent."""

    __slots__ = ("address", "descriptor", "free", "memory", "number", "size", "used")

    def __init__(self, number: int, descriptor: int, size: int) -> None:
        """Map ``descriptor``. Raises OSError if it cannot be mapped."""
        self.number = number
        self.descriptor = descriptor
        self.size = size
        self.memory = memoryview(mmap.mmap(descriptor, size))
        self.address = 0  # not looked up yet
        self.free = [(0, size)]
        self.used = 0

    def announcement(self) -> SlabChange:
        """Return the record that announces the slab, with the slab's own descriptor."""
        return SlabChange(AttachSlab(self.number, self.size), self.descriptor)

    def take(self, size: int) -> int | None:
        """Allocate ``size`` bytes at the lowest free offset, so that no more memory than necessary
        is touched. Return the offset; None if no free range is large enough."""
        for position, (offset, length) in enumerate(self.free):
            if length >= size:
                rest = [(offset + size, length - size)] if length > size else []
                self.free[position : position + 1] = rest
                self.used += size
                return offset
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


class SlabChange(NamedTuple):
    """A record that announces a slab, with the descriptor to send, or a slab's end, without one.

    The receiver of the change owns ``descriptor``, a copy: the slab may be released before it is
    sent.
    """

    record: AttachSlab | DetachSlab
    descriptor: int | None


def close_descriptors(changes: Iterable[SlabChange]) -> None:
    for change in changes:
        if change.descriptor is not None:
            os.close(change.descriptor)


def _with_copies(changes: list[SlabChange]) -> list[SlabChange]:
    """Return the changes with copies of their descriptors. Raises OSError, without leaving
    copies."""
    copied: list[SlabChange] = []
    try:
        for record, descriptor in changes:
            copied.append(SlabChange(record, None if descriptor is None else os.dup(descriptor)))
    except OSError:
        close_descriptors(copied)
        raise
    return copied


class Arena:
    """The owner's side of shared memory: allocates regions in slabs. Thread-safe.

    Changes of the set of slabs are collected for every peer ("follower"); the owner must announce
    them to that peer before it names a region. A follower is known from its first ``announce_all``
    on; the one named "" is known from the start.
    """

    def __init__(self, slab_bytes: int = SLAB_BYTES) -> None:
        self._slab_bytes = slab_bytes
        self._slabs: dict[int, Slab] = {}
        self._next = 0
        self._used_bytes = 0
        self._changes: dict[str, list[SlabChange]] = {"": []}
        self._lock = threading.Lock()

    def allocate(self, size: int) -> Region:
        """Return a new region of ``size`` bytes with undefined contents.

        Raises UnavailableError if the system has no memory for another slab.
        """
        room = _room(size)
        with self._lock:
            for slab in self._slabs.values():
                offset = slab.take(room)
                if offset is not None:
                    break
            else:
                slab = self._new_slab(max(self._slab_bytes, room))
                offset = slab.take(room)
                assert offset is not None
            self._used_bytes += room
            return Region(slab.number, offset, size)

    def free(self, region: Region) -> None:
        """Free ``region``; of several empty slabs only the smallest is kept."""
        size = _room(region.size)
        with self._lock:
            slab = self._slabs[region.slab]
            slab.give(region.offset, size)
            self._used_bytes -= size
            if not slab.used:
                empty = [each for each in self._slabs.values() if not each.used]
                if len(empty) > 1:
                    self._drop(max(empty, key=lambda each: (each.size, each is slab)))

    def memory(self, region: Region) -> memoryview:
        """Return a writable view of a region's bytes."""
        slab = self._slabs[region.slab]
        return slab.memory[region.offset : region.offset + region.size]

    def address(self, region: Region) -> int:
        """Return the address of the region's bytes in this process, valid until it is freed."""
        slab = self._slabs[region.slab]
        if not slab.address:
            import ctypes  # only workers need it, not a stub's start

            slab.address = ctypes.addressof(ctypes.c_char.from_buffer(slab.memory))
        return slab.address + region.offset

    def take_changes(self, follower: str = "") -> list[SlabChange]:
        """Return the slabs made and released since the follower's last call, in order.

        Raises OSError if there are no descriptors left; then the follower needs ``announce_all``.
        """
        if not self._changes[follower]:  # a change that is made just now comes with the next call
            return []
        with self._lock:
            changes, self._changes[follower] = self._changes[follower], []
            return _with_copies(changes)

    def announce_all(self, follower: str = "") -> list[SlabChange]:
        """Return changes that announce every slab, for a new peer; pending changes are dropped.
        Raises as ``take_changes`` does."""
        with self._lock:
            self._changes[follower] = []
            return _with_copies([slab.announcement() for slab in self._slabs.values()])

    def statistics(self) -> dict[str, int]:
        with self._lock:
            return {
                "slabs": len(self._slabs),
                "slab_bytes": sum(slab.size for slab in self._slabs.values()),
                "used_bytes": self._used_bytes,
            }

    def close(self) -> None:
        """Release every slab to the system; existing views keep their slab's memory alive."""
        with self._lock:
            for slab in list(self._slabs.values()):
                self._drop(slab)
            self._changes = {follower: [] for follower in self._changes}

    def _new_slab(self, size: int) -> Slab:
        size = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
        if size > MAX_SLAB_BYTES:
            raise UnavailableError(f"{size} bytes of shared memory asked for at once")
        try:
            descriptor = os.memfd_create("brisk", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise UnavailableError(f"no shared memory: {error}") from error
        try:
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            slab = Slab(self._next, descriptor, size)
        except OSError as error:
            os.close(descriptor)
            raise UnavailableError(f"no {size} bytes of shared memory: {error}") from error
        self._next += 1
        self._slabs[slab.number] = slab
        for changes in self._changes.values():
            changes.append(slab.announcement())
        return slab

    def _drop(self, slab: Slab) -> None:
        del self._slabs[slab.number]
        for changes in self._changes.values():
            if slab.announcement() in changes:
                changes.remove(slab.announcement())
            else:  # the slab was announced to the peer, so announce its end
                changes.append(SlabChange(DetachSlab(slab.number), None))
        os.close(slab.descriptor)
        # The mapping ends with the last view of it; closing it here would raise while a response
        # still reads from it.


class ArenaView:
    """The peer's side of shared memory: maps the announced slabs, and checks every region."""

    def __init__(self) -> None:
        self._memory: dict[int, memoryview] = {}

    @property
    def held_bytes(self) -> int:
        """The bytes of all of the owner's slabs, used or not."""
        return sum(len(memory) for memory in self._memory.values())

    def attach(self, slab: int, size: int, descriptor: int) -> None:
        """Map ``descriptor`` and close it. Raises ProtocolError unless it is sealed against
        shrinking and at least ``size`` bytes."""
        try:
            if slab in self._memory:
                raise ProtocolError(f"slab {slab} was announced twice")
            if not 0 < size <= MAX_SLAB_BYTES:
                raise ProtocolError(f"slab {slab} claims {size} bytes")
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK == 0:
                raise ProtocolError(f"slab {slab} is not sealed against shrinking")
            if os.fstat(descriptor).st_size < size:
                raise ProtocolError(f"slab {slab} is shorter than the {size} bytes it claims")
            self._memory[slab] = memoryview(mmap.mmap(descriptor, size))
        except OSError as error:
            raise ProtocolError(f"slab {slab} cannot be mapped: {error}") from error
        finally:
            os.close(descriptor)

    def detach(self, slab: int) -> None:
        if self._memory.pop(slab, None) is None:
            raise ProtocolError(f"slab {slab} is unknown")

    def memory(self, region: Region) -> memoryview:
        """Return a view of a region's bytes. Raises ProtocolError if the region is not inside a
        known slab.

        A region of no bytes needs no slab: an empty tensor may come before there is one.
        """
        if not region.size:
            return memoryview(b"")
        memory = self._memory.get(region.slab)
        if memory is None:
            raise ProtocolError(f"slab {region.slab} is unknown")
        end = region.offset + region.size
        if region.offset < 0 or region.size < 0 or end > len(memory):
            raise ProtocolError(
                f"region {region.offset}+{region.size} lies outside slab {region.slab} "
                f"of {len(memory)} bytes"
            )
        return memory[region.offset : end]

    def clear(self) -> None:
        self._memory.clear()


# Marks: a worker's notes to a stub in the stub's own memory, without a record. A stub gives every
# request and load a mark; the worker sets it when it begins. The mark outlives the worker, so the
# stub can attribute a crash of the worker.

MARK_BYTES = 64
"""The size of a mark: a cache line, so that a mark shares none with tensor data."""

_WAITING, _BEGUN = 0, 1


def checked_mark(region: Region) -> Region:
    """Return ``region``. Raises ProtocolError if it is too small for a mark."""
    if region.size < MARK_BYTES:
        raise ProtocolError(f"a mark takes {MARK_BYTES} bytes, not {region.size}")
    return region


def reset_mark(memory: memoryview) -> None:
    """Clear a mark. The stub does so before sending, or sending again."""
    memory[0] = _WAITING


def set_mark(memory: memoryview) -> None:
    """Set a mark. The worker does so before it computes anything of the request or load."""
    memory[0] = _BEGUN


def mark_is_set(memory: memoryview) -> bool:
    """Whether the worker has set a mark. The stub asks after the connection broke."""
    return memory[0] == _BEGUN
