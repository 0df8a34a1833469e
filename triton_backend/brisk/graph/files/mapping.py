"""Model files mapped instead of read: a start pays only for the weights that it uses.

A private mapping shows what other processes write into the file until its pages are copied. So a
process that keeps weights for longer than a load calls ``make_private`` after it: each page is
then copied in place, and views stay valid. Until then a process that has called ``hold_files``
holds the files under leases: a writer of one waits until all of it is copied. Without a lease a
file that is shortened ends the process, and one that is written to changes its answers.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from brisk.artefacts.lease import LeasedMap, hold
from brisk.paths import Stamp, is_kept, open_file, stamp_of

PAGE_BYTES = mmap.PAGESIZE
_PAGES_AT_A_TIME = 512
"""The pages copied at a time, in half a millisecond: above 500 elements numpy releases the
interpreter's lock meanwhile."""

_shared: weakref.WeakKeyDictionary[mmap.mmap, LeasedMap | None] = weakref.WeakKeyDictionary()
"""The mappings that are not private yet, with their leases."""
_lock = threading.Lock()
_holds = False


def hold_files() -> None:
    """Let this process hold the files that it maps from now on under leases.

    Not for a process that may get no processor for long: writers of its files would wait for it.
    """
    global _holds
    _holds = True


class MappedFile(NamedTuple):
    """A file's bytes, and the stamp that the very file had when it was mapped."""

    data: memoryview
    stamp: Stamp


def map_file(path: Path) -> MappedFile:
    """Map the file's bytes, read-only to the caller.

    The bytes of a copy (``brisk.copies``) may arrive later: the mapping shows them then, as long
    as nothing writes to it. Raises OSError, and InvalidModelError if the path leads out of its
    model's folder.
    """
    with open_file(path) as file:
        status = os.fstat(file.fileno())
        stamp, size = stamp_of(status), status.st_size
        if size == 0:
            return MappedFile(memoryview(b""), stamp)
        try:
            mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
        except (OSError, ValueError):  # a file system that cannot be mapped
            return MappedFile(memoryview(file.read()), stamp)
        if is_kept(status):  # only the courier writes it, the bytes expected: nothing to hold
            return MappedFile(memoryview(mapping).toreadonly(), stamp)
        leased = None
        if _holds:
            address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
            leased = hold(file.fileno(), mapping, address, is_written=True)
    mapping.madvise(mmap.MADV_WILLNEED)
    with _lock:
        _shared[mapping] = leased
    return MappedFile(memoryview(mapping).toreadonly(), stamp)


def make_private(pause: Callable[[], object]) -> None:
    """Copy every page of the files still mapped, in place.

    ``pause`` is called before each 2 MiB, and may block until there is time for them.
    """
    with _lock:
        mappings = list(_shared.items())
        _shared.clear()
    for mapping, leased in mappings:
        pages = np.frombuffer(mapping, np.uint8)[::PAGE_BYTES]
        for start in range(0, pages.size, _PAGES_AT_A_TIME):
            pause()
            block = pages[start : start + _PAGES_AT_A_TIME]
            np.bitwise_or(block, 0, out=block)  # writes what is there: the page becomes our own
        if leased is not None:
            leased.end()
