"""Where a start reads bytes that are on its host: from memory or from the disk."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

PLAIN = "plain"
"""Of a host's entries the one whose model lies in the repository."""

MEMORY, DISK = "memory", "disk"

_LIBC = ctypes.CDLL(None, use_errno=True)


def cached_bytes(files: Iterable[Path]) -> int:
    """Bytes of these files that a read does not take from the disk. Raises OSError."""
    return sum(_cached(file) for file in files)


def _cached(file: Path) -> int:
    with file.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        if not size:
            return 0
        with mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
            start = ctypes.c_char.from_buffer(
                mapped
            )  # a private mapping, of which nothing is read
            pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
            failed = _LIBC.mincore(ctypes.byref(start), ctypes.c_size_t(size), pages)
            error = ctypes.get_errno()
            del start
        if failed:
            raise OSError(error, f"{file}: {os.strerror(error)}")
    return min(size, sum(page & 1 for page in pages.raw) * mmap.PAGESIZE)
