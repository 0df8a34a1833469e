"""Files in the kernel's page cache: count their cached bytes, and load or drop them."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

MEMORY, DISK = "memory", "disk"
"""The place from which a start reads bytes that are on its host."""

_CHUNK_BYTES = 4 << 20
_LIBC = ctypes.CDLL(None, use_errno=True)


def files_of(path: Path) -> list[Path]:
    """Return the files whose bytes a start reads."""
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def drop_pages(files: Iterable[Path]) -> None:
    """Make the next read of these files come from the disk, as far as the kernel complies.

    Pages that a process has mapped stay. Needs no privilege.
    """
    for file in files:
        with file.open("rb") as opened:
            os.fdatasync(opened)  # dirty pages cannot be dropped
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_pages(files: Iterable[Path]) -> None:
    """Read everything once, in order, in chunks of 4 MiB; the next read comes from memory."""
    buffer = bytearray(_CHUNK_BYTES)
    for file in files:
        with file.open("rb", buffering=0) as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while opened.readinto(buffer):
                pass


def disk_seconds(files: Sequence[Path]) -> float:
    """Return the seconds that reading these files from the disk takes; they stay cached."""
    drop_pages(files)
    started_s = time.perf_counter()
    read_pages(files)
    return time.perf_counter() - started_s


def cached_bytes(files: Iterable[Path]) -> int:
    """Count the bytes of these files that a read does not take from the disk. Raises OSError."""
    return sum(_cached(file) for file in files)


def _cached(file: Path) -> int:
    with file.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        if not size:
            return 0
        with mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
            start = ctypes.c_char.from_buffer(mapped)  # private, and nothing of it is read
            pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
            failed = _LIBC.mincore(ctypes.byref(start), ctypes.c_size_t(size), pages)
            error = ctypes.get_errno()
            del start
        if failed:
            raise OSError(error, f"{file}: {os.strerror(error)}")
    return min(size, sum(page & 1 for page in pages.raw) * mmap.PAGESIZE)
