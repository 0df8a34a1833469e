"""Memory for activations that the kernel has given ahead of its use.

A page fault zeroes the page. On the virtual machine where this was measured, whose host gives
memory anew as well, one of 2 MiB took 0.3 to 2.7 ms, and the first run of ResNet-50 or a small
encoder met eight to ten of them: 12 to 16 ms, which a lane can spend beside the parsing.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

RESERVED_BYTES = 32 << 20
"""What ResNet-50 and encoders of 100 MB need at batch 1, with what their libraries allocate."""

_STEP_BYTES = 2 << 20
_PAGE_BYTES = 4096
_POPULATE_WRITE = 23
"""``MADV_POPULATE_WRITE``: as if every page were written, without changing it (Linux 5.14)."""


def reserve(size: int = RESERVED_BYTES) -> int:
    """Let the allocator take ``size`` bytes from the system and keep them; their address.

    To be called where little was allocated: the memory lies behind all that was. 0 where there
    is none. It is kept only under the settings of ``brisk.frontend.allocator``.
    """
    library = _library()
    address = library.malloc(size)
    if not address:
        return 0
    library.free(address)
    return int(address)


def populate(address: int, size: int = RESERVED_BYTES) -> None:
    """Have the kernel give the pages of a reservation now; in any thread, at any time.

    Contents do not change, so it may be in use meanwhile. Where the kernel does not know this, or
    the allocator has returned the memory, nothing happens.
    """
    start = -(-address // _PAGE_BYTES) * _PAGE_BYTES
    end = (address + size) // _PAGE_BYTES * _PAGE_BYTES
    for offset in range(start, end, _STEP_BYTES) if address else ():
        if _library().madvise(offset, min(_STEP_BYTES, end - offset), _POPULATE_WRITE):
            return


@functools.cache
def _library() -> Any:
    library = ctypes.CDLL(None)
    library.malloc.argtypes = [ctypes.c_size_t]
    library.malloc.restype = ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    library.free.restype = None
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library
