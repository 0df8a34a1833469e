"""The page cache, file by file: emptied, filled, and the time to read a file without it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

_CHUNK_BYTES = 4 << 20


def drop(files: Sequence[Path]) -> None:
    """Have the next read of these files come from the disk, as far as the kernel obliges.

    Pages that a process has mapped stay. Needs no privilege.
    """
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)  # dirty pages cannot be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def warm(files: Sequence[Path]) -> None:
    """Read everything once, so that the next read comes from memory."""
    for file in files:
        _read(file)


def disk_seconds(files: Sequence[Path]) -> float:
    """Seconds to read these files from the disk in order, in chunks of 4 MiB; they stay cached."""
    drop(files)
    started_s = time.perf_counter()
    for file in files:
        _read(file)
    return time.perf_counter() - started_s


def _read(file: Path) -> None:
    buffer = bytearray(_CHUNK_BYTES)
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while os.readv(descriptor, [buffer]):
            pass
    finally:
        os.close(descriptor)
