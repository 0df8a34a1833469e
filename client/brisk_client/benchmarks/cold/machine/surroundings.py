"""What every engine's process finds and has before the clock starts: the same for all of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from brisk.stub.runtime_client.runtime_process import allocator_settings
from brisk_client.benchmarks.engines.onnxruntime_prepared import VARIABLES

MEMORY_BYTES = 60 << 20
"""Of the heap, given by the kernel ahead."""

_PAGE_BYTES = 4096
_POPULATE_WRITE = 23
"""``MADV_POPULATE_WRITE`` (Linux 5.14)."""


def process_environment(threads: int, *, as_it_comes: bool = False) -> dict[str, str]:
    """Of an engine's process: threads, and the allocator's settings of Brisk's runtime for all
    engines but one that is measured ``as_it_comes``. ONNX Runtime sends and notes nothing."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "0"}
    environment |= VARIABLES
    return environment if as_it_comes else environment | allocator_settings(os.environ)


def give_memory() -> None:
    """Let the allocator take MEMORY_BYTES, and have the kernel give their pages now.

    The allocator keeps them under the settings above. Where the kernel does not know how,
    nothing happens, for every engine alike.
    """
    library = ctypes.CDLL(None)
    library.malloc.argtypes, library.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    library.free.argtypes, library.free.restype = [ctypes.c_void_p], None
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    address = library.malloc(MEMORY_BYTES)
    if not address:
        return
    start = -(-address // _PAGE_BYTES) * _PAGE_BYTES
    end = (address + MEMORY_BYTES) // _PAGE_BYTES * _PAGE_BYTES
    library.madvise(start, end - start, _POPULATE_WRITE)
    library.free(address)


@contextlib.contextmanager
def own_cache() -> Iterator[Path]:
    """A cache directory for Brisk that holds nothing of earlier runs.

    ``$BRISK_CACHE_DIR`` names it within; it goes afterwards.
    """
    before = os.environ.get("BRISK_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="brisk-cold-cache-") as folder:
        os.environ["BRISK_CACHE_DIR"] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                os.environ.pop("BRISK_CACHE_DIR", None)
            else:
                os.environ["BRISK_CACHE_DIR"] = before
