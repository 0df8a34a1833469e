"""Starts the fork server, from the first stub of a tritonserver, which finds none.

The stub's launcher has made the socket at which other launchers ask, so they wait for the fork
server from then on. It starts as soon as one waits: one start of Python and one import of numpy
for all of them, and shared memory. While none waits, it starts only after the first model, whose
load and first answers it would slow down.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import threading
from pathlib import Path
from typing import NamedTuple

from brisk.protocol.stub_process import BACKEND, SERVER

LISTENER_VARIABLE = "_BRISK_STUB_LISTENER"
"""Set by the launcher for a stub that found no fork server: the descriptor of a socket that has
the name of one, and listens already."""

SETTINGS_VARIABLE = "_BRISK_STUB_FORK_SERVER"
_PRELOADS_VARIABLE = "_BRISK_STUB_LD_PRELOAD"
_ISOLATED_VARIABLE = "_BRISK_STUB_ISOLATED"
"""Python's flag ``isolated`` in a stub, read by ``source/preload.cpp``."""

PRELOAD = "brisk_stub_preload.so"
"""The file in a backend's folder that makes a stub a fork server."""

SERVER_PRELOAD = "brisk_server_preload.so"
"""The file in a backend's folder that tritonserver loads (``brisk.triton.server_preload``)."""

_OWN_VARIABLE = "_BRISK_STUB"
"""Set by the launcher in a stub that is not forked, by which ``source/server.cpp`` recognises
it."""

_UTF8_VARIABLE = "_BRISK_STUB_UTF8"
"""Set by the launcher if it sets LD_PRELOAD for a stub of its own: the value before that."""

QUIET_S = 1.0
"""The time from a stub's being ready to the fork server's start, if no other launcher waits for
it."""

_NAME = "brisk: forks stubs"
_ROOM = " " * 8192
"""Space in the fork server's command line for those of its stubs."""

_stub_is_ready: int | None = None
"""An eventfd, written to when the stub is ready; None in a stub that starts no fork server."""


class ForkSettings(NamedTuple):
    """The settings of a fork server; ``flags``: Python's flags in a stub that Triton starts."""

    backend: str
    server: int
    niceness: int
    flags: list[int]
    listener: int


def take_settings() -> ForkSettings:
    """Return the settings of this process, a fork server; its children do not inherit them."""
    os.environ.pop(LISTENER_VARIABLE, None)
    return ForkSettings(**json.loads(os.environ.pop(SETTINGS_VARIABLE)))


def take_listener(descriptor: int) -> socket.socket:
    """Return the socket that this process has inherited; its own children do not inherit it."""
    listener = socket.socket(fileno=descriptor)
    listener.set_inheritable(False)
    return listener


def attend_launchers(arguments: list[bytes], niceness: int) -> None:
    """Start the fork server when another launcher waits for it, or after this stub's first answers
    (``start_when_quiet``), if this stub came by the launcher and found none.

    Does not wait; further calls do nothing. ``arguments``: this stub's command line. A fork
    server's children are as Triton meant this process to be: its environment when it began, its
    working directory, ``niceness``.
    """
    global _stub_is_ready
    os.environ.pop(_OWN_VARIABLE, None)
    inherited = os.environ.pop(LISTENER_VARIABLE, None)
    if inherited is None:
        return
    _stub_is_ready = os.eventfd(0, os.EFD_CLOEXEC)
    attended = (take_listener(int(inherited)), _stub_is_ready, arguments, niceness)
    threading.Thread(target=_attend, args=attended, name="brisk-launchers", daemon=True).start()


def start_when_quiet() -> None:
    """Note that this stub's model is ready, so that the fork server may start."""
    if _stub_is_ready is not None:
        os.eventfd_write(_stub_is_ready, 1)


def _attend(
    listener: socket.socket, stub_is_ready: int, arguments: list[bytes], niceness: int
) -> None:
    """Start the fork server when a launcher waits, or ``QUIET_S`` after this stub is ready.

    If that fails the socket is closed, and launchers that wait become stubs themselves."""
    with listener:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        poll.register(stub_is_ready, select.POLLIN)
        if [each for each, _ in poll.poll()] == [stub_is_ready]:
            poll.unregister(stub_is_ready)
            poll.poll(QUIET_S * 1e3)
        try:
            _start(listener, arguments, niceness)
        except OSError as error:
            say_not_forked(str(error))


def _start(listener: socket.socket, arguments: list[bytes], niceness: int) -> None:
    """Start the fork server.

    Raises OSError, also if the kernel has no process descriptors (before Linux 5.3).
    """
    import subprocess  # one stub of many needs it

    os.close(os.pidfd_open(os.getpid()))
    backend = os.fsdecode(arguments[BACKEND])
    descriptor = listener.fileno()
    settings = ForkSettings(backend, int(arguments[SERVER]), niceness, list(sys.flags), descriptor)
    environment = _environment()
    preloads = environment.get("LD_PRELOAD", "")
    preload = f"{backend}/{PRELOAD}"
    check_preload(Path(preload))
    process = subprocess.Popen(
        [_NAME, _ROOM],
        executable=os.readlink("/proc/self/exe"),
        env={
            **environment,
            "LD_PRELOAD": f"{preload}:{preloads}" if preloads else preload,
            _PRELOADS_VARIABLE: preloads,
            _ISOLATED_VARIABLE: str(sys.flags.isolated),
            SETTINGS_VARIABLE: json.dumps(settings._asdict()),
        },
        pass_fds=(descriptor,),
    )
    # It outlives this stub, as a rule; if not, it is not to stay as a zombie.
    threading.Thread(target=process.wait, name="brisk-fork-server", daemon=True).start()


def check_preload(preload: Path) -> None:
    """Check that the file, which Triton's processes will load, is whole and cannot have been
    written by another user.

    The folder is not checked: Triton starts the launcher in the same folder. Raises OSError.
    """
    from brisk.ownership import open_own

    with open(open_own(preload, is_anywhere=True), "rb") as opened:
        is_whole = has_seal(opened.read())
    if not is_whole:
        raise PermissionError(f"'{preload}' is not as it was compiled; `brisk install` renews it")


def say_not_forked(reason: str) -> None:
    """Write the reason to the server's log by standard error, since a fork server has no stub's
    logger."""
    print(f"brisk: stubs are not forked: {reason}", file=sys.stderr)


def _environment() -> dict[str, str]:
    """Return the environment that this stub started with, without the variables that the launcher
    has added for this stub alone."""
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    pairs = [os.fsdecode(entry).partition("=") for entry in entries if entry]
    environment = {name: value for name, _, value in pairs}
    environment.pop(_OWN_VARIABLE, None)
    preloads = environment.pop(_UTF8_VARIABLE, None)
    if preloads is not None:
        environment["LD_PRELOAD"] = preloads
    return environment


# Files that show whether they are as they were made.

_SEAL_BYTES = 32


def has_seal(data: bytes) -> bool:
    """Whether ``data`` ends with the digest of all bytes before, which ``add_seal`` appends."""
    return _digest(data[:-_SEAL_BYTES]) == data[-_SEAL_BYTES:]


def add_seal(file: Path) -> None:
    """Append the digest of the file's content; loaders and the kernel ignore it."""
    data = file.read_bytes()
    with file.open("ab") as end:
        end.write(_digest(data))


def _digest(data: bytes) -> bytes:
    import hashlib  # one stub of many needs it

    return hashlib.sha256(data).digest()
