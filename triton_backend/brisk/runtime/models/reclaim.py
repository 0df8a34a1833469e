"""Giving memory back when sessions are gone, while no request waits for the interpreter."""

from __future__ import annotations

import ctypes
import functools
import gc
import time
from collections.abc import Callable
from typing import Any, ClassVar

SPARE_BYTES = 64 << 20
"""Of freed memory that the heap may keep: less is not worth what runs pay to have it again."""

LONGEST_WAIT_S = 1.0
"""How long a collection waits for a moment without requests; then it is made beside them."""

_LOOK_S = 0.002


def tidy_up(is_free: Callable[[float], bool | None]) -> bool:
    """Collect what is unreachable and return free memory to the system, at a quiet moment.

    ``is_free`` is given a time-out: whether no request runs; None where something more urgent
    than this is to be done. Then nothing is, and the result is False.
    """
    until_s = time.monotonic() + LONGEST_WAIT_S
    while not (free := is_free(_LOOK_S)):
        if free is None:
            return False
        if time.monotonic() > until_s:
            break
    gc.collect()
    give_back()
    return True


def give_back(spare: int = SPARE_BYTES) -> bool:
    """Return the heap's free memory to the system, if it is more than ``spare``.

    False, changing nothing, where it is not, or the C library cannot tell.
    """
    library = _library()
    if not hasattr(library, "mallinfo2"):  # glibc before 2.33, or another C library
        return False
    library.mallinfo2.restype = _Statistics
    if library.mallinfo2().fordblks <= spare:
        return False
    library.malloc_trim(0)
    return True


class _Statistics(ctypes.Structure):
    """``struct mallinfo2``: of it ``fordblks``, bytes of the heap that are free."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


@functools.cache
def _library() -> Any:
    return ctypes.CDLL(None)
