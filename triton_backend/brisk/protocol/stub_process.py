"""The process of a stub: its command line, and its end when its server ends.

Triton starts a stub as ``stub <model.py> <region> <2 sizes> <server> <backend> <handle> <name>
<folder of the model.py>``. A stub that a fork server has made (``brisk.fork_server``) has the same
command line, but another parent, and its launcher as a further keeper.

A stub waits for its server in shared memory, forever if the server was killed, and holds its
region of ``/dev/shm``. The kernel's signal at the parent's death does not help: it depends on the
thread that forked, and Triton's loading threads come and go. So each stub watches its server. A
stub may also wait with Python's lock held, so that none of its threads can run; so the worker
kills stubs that do not end themselves.
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
"""The positions in a stub's command line of its region, its server and the backend's folder."""

POLL_INTERVAL_S = 0.5
"""The time between two checks of a process, if the kernel has no process descriptors."""

_forked: tuple[list[bytes], int] | None = None
_watching = threading.Lock()


def become(arguments: list[bytes], launcher: int) -> None:
    """Note, in a forked process, that it is now the stub with this command line.

    ``launcher``: the process number of its launcher.
    """
    global _forked
    _forked = arguments, launcher


def command_line(process: int | None = None) -> list[bytes]:
    """Return the command line of another process, or of this one; empty if the process is
    gone."""
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
    """Return the process number of this stub's tritonserver; the parent's if this process is no
    stub."""
    arguments = command_line()
    return int(arguments[SERVER]) if is_stub(arguments) else os.getppid()


def keepers() -> list[int]:
    """Return the processes with which this stub ends: the server, and the launcher of a forked
    stub."""
    return [server_of_stub(), *([_forked[1]] if _forked is not None else [])]


def end_with_server() -> None:
    """Watch this stub's keepers from now on, and end with any of them; further calls do
    nothing."""
    if _watching.acquire(blocking=False):
        watched = (keepers(),)
        threading.Thread(target=_watch, args=watched, name="brisk-orphan", daemon=True).start()


def hide_region() -> None:
    """Set this stub's region in ``/dev/shm`` to mode 0600: it holds tensors, and Triton makes it
    readable by all users.
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
        _poll_for_end_of_any(processes)
        return
    ended.poll()


def _poll_for_end_of_any(processes: list[int]) -> None:
    first: list[int | None] = []
    while True:
        with contextlib.suppress(OSError):  # it is unknown now, but no end
            births = [birth_of(process) for process in processes]
            first = first or births
            if None in births or births != first:
                return
        time.sleep(POLL_INTERVAL_S)


def end_orphan(process: int) -> None:
    """Kill a stub that has not ended itself, and remove its shared memory; called by a worker."""
    _remove_region(command_line(process))
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _remove_region(arguments: list[bytes]) -> None:
    """Remove a stub's region in ``/dev/shm``, which its command line names after the model's
    path."""
    if not is_stub(arguments) or b"/" in arguments[REGION]:
        return
    with contextlib.suppress(OSError):
        (Path("/dev/shm") / os.fsdecode(arguments[REGION])).unlink()


def parent_of(process: int) -> int | None:
    """Return the process number of a process's parent; None if the process is gone. Raises as
    ``birth_of`` does."""
    status = _status(process)
    return int(status[1]) if status else None


def birth_of(process: int) -> int | None:
    """Return when a process began, in ticks since the machine started; None if it has ended.

    Together with its number this identifies a process, since numbers are reused. Raises OSError if
    the system does not tell: this process may have no descriptor left to read it with.
    """
    status = _status(process)
    return int(status[19]) if status and status[0] not in "ZX" else None


def has_ended(process: int, birth: int | None) -> bool:
    """Return whether the process that began at ``birth`` has ended; False if the system does not
    tell."""
    try:
        return birth_of(process) != birth
    except OSError:
        return False


def _status(process: int) -> list[str]:
    """Return the fields of ``/proc/<process>/stat`` after the name; empty if the process is
    gone. Raises OSError if it cannot be read."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return status.rpartition(")")[2].split()
