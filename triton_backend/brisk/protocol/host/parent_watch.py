"""Ending stubs whose server has died.

A stub waits for its server in shared memory, for ever if the server was killed, and holds its
part of ``/dev/shm``. Asking the kernel for a signal at the parent's death will not do: the
kernel means the thread that forked, and Triton's loading threads come and go. So each stub
watches its server; and since Triton may have left one waiting with Python's lock held, when no
thread of it can run, the worker ends what has not ended itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from brisk.protocol.host.stub_process import REGION, command_line, is_stub, keepers

POLL_INTERVAL_S = 0.5
"""Where the kernel has no process descriptors."""

_started = threading.Lock()


def end_with_server() -> None:
    """Stub: watch the server from now on; further calls do nothing."""
    if _started.acquire(blocking=False):
        watched = (keepers(),)
        threading.Thread(target=_watch, args=watched, name="brisk-orphan", daemon=True).start()


def _watch(processes: Sequence[int]) -> None:
    _await_end_of_any(processes)
    _remove_region(command_line())
    os._exit(0)  # Triton's own exit path waits for the server; the kernel closes all that is ours


def _await_end_of_any(processes: Sequence[int]) -> None:
    ended = select.poll()
    try:
        for process in processes:
            ended.register(os.pidfd_open(process), select.POLLIN)
    except ProcessLookupError:
        return
    except OSError:
        births = [birth_of(process) for process in processes]
        while births == [birth_of(process) for process in processes]:
            time.sleep(POLL_INTERVAL_S)
        return
    ended.poll()


def parent_of(process: int) -> int | None:
    """The parent's process number; None where the process is gone."""
    status = _status(process)
    return int(status[1]) if status else None


def birth_of(process: int) -> int | None:
    """When the process began, in ticks since the machine did; None where it has ended.

    With its number it names a process, since numbers are given anew.
    """
    status = _status(process)
    return int(status[19]) if status and status[0] not in "ZX" else None


def _status(process: int) -> list[str]:
    """The fields of ``/proc/<process>/stat`` behind the name; empty where it is gone."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return []
    return status.rpartition(")")[2].split()


def end_orphan(process: int) -> None:
    """Worker: kill a stub that is still there, and remove its shared memory."""
    _remove_region(command_line(process))
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _remove_region(arguments: list[bytes]) -> None:
    """The stub's part of ``/dev/shm`` is named by its command line, behind the model's path."""
    if not is_stub(arguments) or b"/" in arguments[REGION]:
        return
    with contextlib.suppress(OSError):
        (Path("/dev/shm") / os.fsdecode(arguments[REGION])).unlink()
