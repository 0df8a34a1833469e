"""Memory for activations that the kernel has given ahead of its use.

A page fault zeroes the page. On the virtual machine where this was measured, whose host gives
memory anew as well, one of 2 MiB took 0.3 to 2.7 ms, and the first run of ResNet-50 or a small
encoder met eight to ten of them: 12 to 16 ms, which a lane can spend beside the parsing.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

RESERVED_BYTES = 60 << 20
"""What a U-Net of 224 x 224 pixels needs at batch 1, with what its libraries allocate: it waited
up to 20 ms of 95 for what was beyond 32 MB. Less than ``mmap_threshold`` of
``brisk.frontend.allocator``, so that it is of the heap."""

SPARE_BYTES = 64 << 20
"""Of freed memory that the heap may keep: less is not worth what runs pay to have it again."""

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


def give_back(spare: int = SPARE_BYTES) -> bool:
    """Return the heap's free memory to the system, if there is much more than ``spare`` of it.

    What runs need next is taken anew at once, so that none of them meets its page faults. False,
    changing nothing, where there is too little to be worth that, or the C library cannot tell.
    """
    library = _library()
    if not hasattr(library, "mallinfo2"):  # glibc before 2.33, or another C library
        return False
    library.mallinfo2.restype = _Statistics
    if library.mallinfo2().fordblks <= spare + RESERVED_BYTES:
        return False
    library.malloc_trim(0)
    populate(reserve())
    return True


class _Statistics(ctypes.Structure):
    """``struct mallinfo2``: of it ``fordblks``, bytes of the heap that are free."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


@functools.cache
def _library() -> Any:
    library = ctypes.CDLL(None)
    library.malloc.argtypes = [ctypes.c_size_t]
    library.malloc.restype = ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    library.free.restype = None
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library
