"""Telling the runtime of a load before it is asked for.

Triton imports a model's module before numpy, which takes 0.1 s, and calls ``initialize`` behind
that. So the first thing that a stub does is to tell the worker which file it will ask for; the
worker loads it while the stub's own start goes on. By then only the command line and the entry's
files are known: where they do not show that the foreground worker is to load the file at once,
nothing is told, and the load begins with ``initialize``.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from brisk import __version__
from brisk.errors import BriskError
from brisk.wire.channel import check_peer, send_record
from brisk.wire.entry_files import MODEL_FILE, PIPELINE_FILE
from brisk.wire.place import runtime_place
from brisk.wire.records import PROTOCOL_VERSION, Expect, Hello
from brisk.wire.role import Role

CONNECT_TIMEOUT_S = 0.02

_MAX_CONFIG_BYTES = 1 << 20
_DECIDED_ELSEWHERE = (
    *("brisk_load", "besteffort"),
    *("default_model_filename", "KIND_GPU", "KIND_MODEL"),
)
"""Words of a configuration with which another file, or none, may be loaded, or elsewhere."""

_NVIDIA = Path("/dev/nvidiactl")
"""Where there is one, an entry without instance group may be Triton's to put on a GPU."""

_told: list[socket.socket] = []


def expect_own_model() -> None:
    """Tell the runtime, if there is one, what this stub's command line says it will load."""
    try:
        arguments = Path("/proc/self/cmdline").read_bytes().split(b"\0")
        expected = expected_model([os.fsdecode(argument) for argument in arguments])
        if expected is not None:
            _told.append(tell(expected))
    except (OSError, BriskError):
        pass  # no runtime yet, or one that cannot be used: the load itself will say so


def withdraw() -> None:
    """The load has been asked for: nothing more is expected."""
    while _told:
        _told.pop().close()


def expected_model(arguments: list[str]) -> Expect | None:
    """What a stub with this command line will load; None where that is not sure."""
    if len(arguments) < 9:
        return None
    directory = Path(arguments[1]).parent
    entry = directory.parent
    if not directory.name.isdecimal() or arguments[8] == entry.name:
        return None  # the stub that completes the configuration is named as the entry: no load
    model, config = directory / MODEL_FILE, entry / "config.pbtxt"
    if not model.is_file() or (directory / PIPELINE_FILE).exists():
        return None
    text = ""
    if config.exists():
        with config.open(encoding="utf-8", errors="replace") as file:
            text = file.read(_MAX_CONFIG_BYTES)
    if any(word in text for word in _DECIDED_ELSEWHERE):
        return None
    if "KIND_CPU" not in text and _NVIDIA.exists():
        return None
    return Expect(entry.name, int(directory.name), str(model.absolute()))


def tell(expected: Expect) -> socket.socket:
    """Say it to the foreground worker; the connection that keeps it expected.

    Raises OSError or BriskError where there is no worker to tell.
    """
    connection = runtime_place("cpu").connect(CONNECT_TIMEOUT_S, Role.FOREGROUND)
    try:
        check_peer(connection)
        hello = Hello(PROTOCOL_VERSION, __version__, os.getpid(), os.getppid())
        send_record(connection, hello)
        send_record(connection, expected)
    except BaseException:
        connection.close()
        raise
    return connection
