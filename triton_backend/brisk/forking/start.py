"""Starting the fork server: by the first stub of a tritonserver, which finds none."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import NamedTuple

from brisk.forking.server import listen
from brisk.wire.stub_process import BACKEND, SERVER

SETTING = "BRISK_FORK_STUBS"
"""``0``: the launcher asks for no fork server, and none is started."""

SOCKET_VARIABLE = "_BRISK_STUB_SOCKET"
"""Set by the launcher for a stub that found no fork server: the name that one would have."""

SETTINGS_VARIABLE = "_BRISK_STUB_FORK_SERVER"
_PRELOADS_VARIABLE = "_BRISK_STUB_LD_PRELOAD"
_ISOLATED_VARIABLE = "_BRISK_STUB_ISOLATED"
"""Read by ``source/preload.cpp``."""

PRELOAD = "brisk_stub_preload.so"

_NAME = "brisk: forks stubs"
_ROOM = " " * 8192
"""In the fork server's command line, for those of its stubs."""


class Settings(NamedTuple):
    """What a fork server is told. ``flags`` are Python's in a stub of Triton's making."""

    backend: str
    socket: str
    server: int
    niceness: int
    flags: list[int]


def take_settings() -> Settings:
    """Those of this process, a fork server, whose children shall find nothing of them."""
    os.environ.pop(SOCKET_VARIABLE, None)
    return Settings(**json.loads(os.environ.pop(SETTINGS_VARIABLE)))


def start_fork_server(arguments: list[bytes], niceness: int) -> None:
    """Start one, where this stub came by the launcher and found none. Does not wait. Nothing
    happens where another stub has just started one, or the kernel has no process descriptors.

    ``arguments``: this stub's command line. A fork server's children are as Triton meant this
    process to be: its environment when it began, its working directory, ``niceness``.
    """
    socket = os.environ.pop(SOCKET_VARIABLE, None)
    if socket is None or not _is_free(socket) or not _has_process_descriptors():
        return
    import subprocess  # one stub of many needs it

    backend = os.fsdecode(arguments[BACKEND])
    settings = Settings(backend, socket, int(arguments[SERVER]), niceness, list(sys.flags))
    environment = _environment()
    preloads = environment.get("LD_PRELOAD", "")
    preload = f"{backend}/{PRELOAD}"
    try:
        _check(Path(preload))
    except OSError as error:
        say_not_forked(str(error))
        return
    try:
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
        )
    except OSError as error:
        say_not_forked(str(error))
        return
    # It outlives this stub, as a rule; if not, it is not to stay as a zombie.
    threading.Thread(target=process.wait, name="brisk-fork-server", daemon=True).start()


def _check(preload: Path) -> None:
    """That the file, which every stub will load, is whole and nobody else can have written it.

    The folder is not looked at: Triton has just started the launcher that lies beside the file.
    Raises OSError.
    """
    from brisk.compiled.compiler import is_sealed  # one stub of many needs it

    if not is_sealed(preload, is_anywhere=True):
        raise PermissionError(f"'{preload}' is not as it was compiled; `brisk install` renews it")


def say_not_forked(reason: str) -> None:
    """To the server's log: a stub's own way there is not open in a fork server."""
    print(f"brisk: stubs are not forked: {reason}", file=sys.stderr)


def _is_free(name: str) -> bool:
    listener = listen(name)
    if listener is not None:
        listener.close()
    return listener is not None


def _has_process_descriptors() -> bool:
    """Linux 5.3, and nothing that forbids them."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def _environment() -> dict[str, str]:
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    pairs = [os.fsdecode(entry).partition("=") for entry in entries if entry]
    return {name: value for name, _, value in pairs}
