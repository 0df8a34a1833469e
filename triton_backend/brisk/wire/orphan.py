"""Ending stubs whose server has died.

A stub waits for its server in shared memory, for ever if the server was killed, and holds its
part of ``/dev/shm``. Asking the kernel for a signal at the parent's death will not do: the
kernel means the thread that forked, and Triton's loading threads come and go. So each stub
watches its parent; and since Triton may have left one waiting with Python's lock held, when no
thread of it can run, the worker ends what has not ended itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

POLL_INTERVAL_S = 0.5

_started = threading.Lock()


def end_with_parent() -> None:
    """Stub: watch the server from now on; further calls do nothing."""
    if _started.acquire(blocking=False):
        parent = os.getppid()
        threading.Thread(target=_watch, args=(parent,), name="brisk-orphan", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_INTERVAL_S)
    _remove_region(os.getpid())
    os._exit(0)  # Triton's own exit path waits for the server; the kernel closes all that is ours


def parent_of(process: int) -> int | None:
    """The parent's process number; None where the process is gone."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    return int(status.rpartition(")")[2].split()[1])


def end_orphan(process: int) -> None:
    """Worker: kill a stub that is still there, and remove its shared memory."""
    _remove_region(process)
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _remove_region(process: int) -> None:
    """The stub's part of ``/dev/shm`` is named by its command line, behind the model's path."""
    with contextlib.suppress(OSError):
        arguments = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        name = os.fsdecode(arguments[2]) if len(arguments) > 2 else ""
        if b"triton_python_backend_stub" in arguments[0] and name and "/" not in name:
            (Path("/dev/shm") / name).unlink()
