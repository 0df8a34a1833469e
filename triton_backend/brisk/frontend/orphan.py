"""Ending a stub whose server has died.

A stub waits for its server in shared memory, for ever if the server was killed, and holds its
part of ``/dev/shm``. Asking the kernel for a signal at the parent's death will not do: the
kernel means the thread that forked, and Triton's loading threads come and go.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

POLL_INTERVAL_S = 0.5

_started = threading.Lock()


def end_with_parent() -> None:
    """Watch from now on; further calls do nothing."""
    if _started.acquire(blocking=False):
        parent = os.getppid()
        threading.Thread(target=_watch, args=(parent,), name="brisk-orphan", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_INTERVAL_S)
    region = _shared_memory_region()
    if region is not None:
        with contextlib.suppress(OSError):
            region.unlink()
    os._exit(0)  # Triton's own exit path waits for the server; the kernel closes all that is ours


def _shared_memory_region() -> Path | None:
    """This stub's part of ``/dev/shm``, which its command line names; None where it does not."""
    arguments = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    if len(arguments) < 3:
        return None
    name = os.fsdecode(arguments[2])
    return Path("/dev/shm") / name if name and "/" not in name else None
