"""A worker's memory: its bound, the error of a request that reaches it, and freed memory."""

from __future__ import annotations

import contextlib
import ctypes
import re
import resource
from pathlib import Path
from typing import ClassVar

from brisk.errors import BriskError, UnavailableError, lacks_memory
from brisk.posix import libc

MIB = 1024 * 1024

OUT_OF_MEMORY_SCORE = 500
"""The worker's ``oom_score_adj``, at most 1000: the kernel ends it first of our processes."""

SPARE_BYTES = 64 << 20
"""The freed memory that the heap may keep: returning less costs runs more than it is worth."""

_budget_bytes: int | None = None
"""The bound given to ``limit_memory``; None: this process takes what the machine has."""


def limit_memory(budget_bytes: int) -> None:
    """Let this process take ``budget_bytes`` more than it has; an allocation beyond that fails.

    Its private memory counts (RLIMIT_DATA). Mapped model files, which the kernel can read again,
    and memory shared with stubs do not. A request that fails so is answered, and others go on.
    Without the bound the kernel would end whole processes, this one first.
    """
    global _budget_bytes  # the bound is the process's
    _budget_bytes = budget_bytes
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OUT_OF_MEMORY_SCORE))
    status = Path("/proc/self/status").read_text()
    found = re.search(r"^VmData:\s+(\d+) kB", status, re.MULTILINE)
    present = (int(found.group(1)) * 1024 if found else 0) + budget_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        present = min(present, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (present, hard))


def shortage(error: BaseException, what: str) -> BriskError | None:
    """Return an UnavailableError if ``error`` reports that memory is short, else None."""
    if not lacks_memory(error):
        return None
    bound = (
        "the device has no more"
        if _budget_bytes is None
        else f"best-effort work may take {_budget_bytes // MIB} MiB (BRISK_BACKGROUND_MIB)"
    )
    return UnavailableError(f"not enough memory for {what}: {bound}")


def give_back(spare: int = SPARE_BYTES) -> bool:
    """Return the heap's free memory to the system, if it is more than ``spare``.

    Return False, with nothing changed, if it is not, or if the C library cannot report it.
    """
    library = libc()
    if not hasattr(library, "mallinfo2"):  # glibc before 2.33, or another C library
        return False
    library.mallinfo2.restype = _Statistics
    if library.mallinfo2().fields[8] <= spare:
        return False
    library.malloc_trim(0)
    return True


class _Statistics(ctypes.Structure):
    """``struct mallinfo2``; its ninth field, ``fordblks``, is the heap's free memory in bytes."""

    _fields_: ClassVar = [("fields", ctypes.c_size_t * 10)]
