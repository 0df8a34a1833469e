"""What a stub is to Triton, and the end of stubs whose server has died.

Triton starts a stub as ``stub <model.py> <region> <2 sizes> <server> <backend> <handle> <name>
<folder of the model.py>``. A stub that a fork server has made (``brisk.fork_server``) has the same
command line, but a parent and, in its launcher, a keeper of its own.

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
from pathlib import Path

STUB = "triton_python_backend_stub"
REGION, SERVER, BACKEND = 2, 5, 9
"""Positions in the command line."""

POLL_INTERVAL_S = 0.5
"""The time between two looks at a process, if the kernel has no process descriptors."""

_forked: tuple[list[bytes], int] | None = None
_watching = threading.Lock()


def become(arguments: list[bytes], launcher: int) -> None:
    """A fork: from now on this process is the stub with this command line."""
    global _forked
    _forked = arguments, launcher


def command_line(process: int | None = None) -> list[bytes]:
    """Return the command line of another process, or this one; empty: the process is gone."""
    if process is None and _forked is not None:
        return _forked[0]
    try:
        text = Path(f"/proc/{process or os.getpid()}/cmdline").read_bytes()
    except OSError:
        return []
    return text.rstrip(b"\0").split(b"\0")


def is_stub(arguments: list[bytes]) -> bool:
    return len(arguments) > BACKEND and arguments[0].endswith(STUB.encode())


def server_of_stub() -> int:
    """The process number of this stub's tritonserver; the parent's in a process that is none."""
    arguments = command_line()
    return int(arguments[SERVER]) if is_stub(arguments) else os.getppid()


def keepers() -> list[int]:
    """The processes whose end is this stub's end."""
    return [server_of_stub(), *([_forked[1]] if _forked is not None else [])]


def end_with_server() -> None:
    """Stub: watch the server from now on; further calls do nothing."""
    if _watching.acquire(blocking=False):
        watched = (keepers(),)
        threading.Thread(target=_watch, args=watched, name="brisk-orphan", daemon=True).start()


def hide_region() -> None:
    """Stub: take other users' rights from its part of ``/dev/shm``, which holds tensors and which
    Triton makes readable by all.
    """
    arguments = command_line()
    if is_stub(arguments) and b"/" not in arguments[REGION]:
        with contextlib.suppress(OSError):  # it is not there, or another user's
            os.chmod(b"/dev/shm/" + arguments[REGION], 0o600)


def _watch(processes: list[int]) -> None:
    _await_end_of_any(processes)
    _remove_region(command_line())
    os._exit(0)  # Triton's own exit path waits for the server; the kernel closes all that is ours


def _await_end_of_any(processes: list[int]) -> None:
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
