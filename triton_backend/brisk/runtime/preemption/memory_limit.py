"""A bound on the background worker's memory, and the error of a request that ran into it."""

from __future__ import annotations

import contextlib
import re
import resource
from pathlib import Path

from brisk.errors import BriskError, UnavailableError

MIB = 1024 * 1024

OUT_OF_MEMORY_SCORE = 500
"""Added to the worker's badness, of at most 1000: the kernel ends it before any other of ours."""

_SHORTAGE = re.compile(
    r"can't allocate memory|bad_alloc|out of memory|cannot allocate memory|Unable to allocate"
    r"|Failed to allocate memory",
    re.IGNORECASE,
)
"""As torch, C++, CUDA, the system, numpy and ONNX Runtime put it."""


_budget_bytes: int | None = None
"""What ``limit_memory`` was told; None: this process takes what the machine has."""


def limit_memory(budget_bytes: int) -> None:
    """Let this process take ``budget_bytes`` more than it has: an allocation beyond that fails.

    Its private memory counts (RLIMIT_DATA); mapped model files, which the kernel can read again,
    and memory shared with stubs do not. A request that fails so is answered, and others go
    on; without the bound the kernel would end whole processes, this one first.
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
    """An UnavailableError where ``error`` says that memory is short, else None."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or _SHORTAGE.search(str(cause)):
            bound = (
                "the device has no more"
                if _budget_bytes is None
                else f"best-effort work may take {_budget_bytes // MIB} MiB (BRISK_BACKGROUND_MIB)"
            )
            return UnavailableError(f"not enough memory for {what}: {bound}")
        cause = cause.__cause__
    return None
