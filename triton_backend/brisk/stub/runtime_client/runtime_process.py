"""The process of a device's runtime: started unless it runs, and connected to.

A stub begins with this module, before other imports (``start_early``). So imports that only a
connection or a new process needs are made where they are used.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from brisk.errors import BriskError, InvalidConfigurationError, UnavailableError
from brisk.interpreter import python_environment, runtime_python
from brisk.os_priority import process_niceness
from brisk.protocol.runtime_paths import Role, RuntimePaths, runtime_place
from brisk.settings import runtime_settings

if TYPE_CHECKING:  # a stub that finds its runtime does without
    import subprocess

NICENESS = process_niceness()
"""The niceness of this process when it began, and so the server's. A stub of a real-time model
changes its own, but a runtime that it starts is for all models."""

CONNECT_TIMEOUT_S = 5.0
START_TIMEOUT_S = 120.0
"""The longest wait for a runtime to answer: torch from a cold disk can take long."""

_SEND_TIMEOUT_S = 60
"""The time after which a foreground worker that reads nothing counts as dead. A background worker
may have to wait longer for a processor."""

_RETRY_PAUSE_S = 0.02
_GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))

_lock = threading.Lock()
"""Guards ``_starting`` and ``_running``: the connections to both workers are made by threads of
their own."""

_starting: dict[RuntimePaths, subprocess.Popen[bytes]] = {}
"""The runtimes that this process has started and that have not answered yet."""

_told: dict[RuntimePaths, tuple[str, ...]] = {}
"""The settings that this process has told at each place: those of its server, which do not change
while it lives."""

_running: list[subprocess.Popen[bytes]] = []
"""The started runtimes that have answered; polled so that none stays a zombie."""


def start_early() -> None:
    """Start the CPU's runtime early if the machine has no GPU, so that no other can be needed.

    It then starts during the stub's further imports, which take a tenth of its start. Errors are
    ignored: they are reported when the runtime is needed.
    """
    if any(driver.exists() for driver in _GPU_DRIVERS):
        return
    with contextlib.suppress(BriskError, OSError):
        start_if_absent(runtime_place("cpu"))


def start_if_absent(place: RuntimePaths) -> None:
    """Start a runtime unless one holds the place or one that this process started is still
    starting. Does not wait.

    Raises InvalidConfigurationError if the one that this process started has failed.
    """
    with _lock:
        if (starter := _starting.get(place)) is not None:
            status = starter.poll()
            if status is None:
                return
            del _starting[place]
            if status != 0:
                if words := place.take_words(starter.pid):
                    raise InvalidConfigurationError(
                        f"the runtime of {place.device} cannot start: {words}"
                    )
                raise InvalidConfigurationError(
                    f"the runtime of {place.device} ended with status {status} while it started "
                    f"with {runtime_python()}; its own words are in the server's log. Where a "
                    "package is missing there: pip install 'brisk-triton', or BRISK_PYTHON=<a "
                    "Python that has it> for the server"
                )
        place.prepare()
        try:
            lock = place.try_lock()
        except OSError as error:
            raise InvalidConfigurationError(
                f"the lock {place.lock_path} cannot be used: {error}"
            ) from error
        if lock is not None:
            os.close(lock)  # no runtime is there; of those that several stubs start, one gets it
            _starting[place] = _spawn(place)


def reap_started() -> None:
    """Collect the exit status of started runtimes that have ended, so that none stays a zombie."""
    with _lock:
        _running[:] = [process for process in _running if process.poll() is None]


def open_connection(
    place: RuntimePaths, role: Role, timeout_s: float = START_TIMEOUT_S
) -> socket.socket:
    """Connect to a worker of ``place`` and greet it; start the runtime if necessary. Return the
    blocking connection.

    Raises UnavailableError if no worker answers in time, ProtocolError if it is of another version
    of Brisk, InvalidConfigurationError if it or its device cannot be used.
    """
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        try:
            connection = place.connect(CONNECT_TIMEOUT_S, role)
        except OSError:
            start_if_absent(place)
        else:
            try:
                _greet(connection, place, role, deadline_s)
            except (OSError, EOFError):  # it ended as we connected: try the next one
                connection.close()
            except BaseException:
                connection.close()
                raise
            else:
                with _lock:  # it is there: if it ends now, it has not failed to start
                    if (process := _starting.pop(place, None)) is not None:
                        _running.append(process)
                return connection
        time.sleep(_RETRY_PAUSE_S)
    raise UnavailableError(
        f"the runtime of {place.device} did not answer at {place.socket_path(role)} within "
        f"{timeout_s:.0f} s; its own words are in the server's log"
    )


def _greet(connection: socket.socket, place: RuntimePaths, role: Role, deadline_s: float) -> None:
    """Exchange greetings on a new connection. They carry this process's settings, which the
    runtime must have: another server may have started the present one."""
    from brisk.protocol.channel import greet
    from brisk.protocol.stub_process import server_of_stub

    connection.settimeout(max(0.1, deadline_s - time.monotonic()))
    greet(connection, server_of_stub(), _told.setdefault(place, runtime_settings()))
    connection.settimeout(None)
    if role is Role.FOREGROUND:
        limit = struct.pack("ll", _SEND_TIMEOUT_S, 0)  # and microseconds
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


# Making a runtime's process.

ALLOCATOR_VARIABLE = "GLIBC_TUNABLES"

HUGE_PAGES = "glibc.malloc.hugetlb"
TUNABLES = {
    HUGE_PAGES: "1",
    "glibc.malloc.mmap_threshold": str(64 << 20),
    "glibc.malloc.trim_threshold": str(1 << 30),
    "glibc.malloc.arena_max": "1",
}
"""Settings of the C library's allocator, which reads them when a process starts. Huge pages are
used where the kernel grants them on advice, and blocks of weights and activations are kept for the
next run instead of being mapped, faulted in and unmapped each time. On a virtual machine a page
fault costs 1.3 µs: 100 MB of fresh memory take 33 ms by small pages and 13 by huge ones. All
threads share one heap: each further one would begin with huge pages of its own. No huge pages are
used if the machine gives free memory back to its host, which then has to find each of them again.
glibc before 2.35 and other C libraries ignore what they do not know."""

_VIRTIO = Path("/sys/bus/virtio/devices")
_BALLOON, _REPORTS_FREE_PAGES = 5, 5
"""The kind of a virtio balloon device, and the bit of its features that says whether it reports
free pages (Virtual I/O Device 1.2, section 5.5.3)."""


def allocator_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the allocator's environment variable for a new runtime; the user's own settings in it
    are kept."""
    ours = dict(TUNABLES)
    if _gives_memory_back():
        del ours[HUGE_PAGES]
    present = environment.get(ALLOCATOR_VARIABLE, "")
    settings = [setting for setting in present.split(":") if setting]
    named = {setting.partition("=")[0] for setting in settings}
    settings += [f"{name}={value}" for name, value in ours.items() if name not in named]
    return {ALLOCATOR_VARIABLE: ":".join(settings)}


def _gives_memory_back() -> bool:
    """Whether this virtual machine reports free pages to its host, which takes them away.

    Linux reports blocks of the size of a huge page, so free small pages often remain.
    """
    for device in _VIRTIO.glob("*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            kind = int((device / "device").read_text(), 16)
            features = (device / "features").read_text()
            if kind == _BALLOON and features[_REPORTS_FREE_PAGES] == "1":
                return True
    return False


def _spawn(place: RuntimePaths) -> subprocess.Popen[bytes]:
    """Start a runtime's process. It leaves this stub's process group by itself
    (``brisk.runtime``).

    It stays in the session: with ``setsid`` it would get its own scheduling group, in which its
    best-effort work would yield only to its own other work.
    """
    import subprocess

    environment = {
        **python_environment(),
        **allocator_settings(os.environ),
        "BRISK_RUNTIME_DIR": str(place.base),
    }
    interpreter = runtime_python()
    command = [interpreter, "-m", "brisk.runtime", "--device", place.device]
    try:
        return subprocess.Popen(
            [*command, "--niceness", str(NICENESS)],
            stdin=subprocess.DEVNULL,
            stdout=sys.__stderr__,
            env=environment,
            cwd="/",
        )
    except OSError as error:
        raise InvalidConfigurationError(
            f"the runtime's Python '{interpreter}' cannot be run ({error}); "
            "set BRISK_PYTHON to one that has onnxruntime"
        ) from error
