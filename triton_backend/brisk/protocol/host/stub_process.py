"""What a stub is to Triton: its command line and the processes whose end is its own.

Triton starts a stub as ``stub <model.py> <region> <2 sizes> <server> <backend> <handle> <name>
<folder of the model.py>``. A stub that a fork server has made (``brisk.fork_server``) has the same
command line, but a parent and, in its launcher, a keeper of its own.
"""

from __future__ import annotations

import os
from pathlib import Path

STUB = "triton_python_backend_stub"
REGION, SERVER, BACKEND = 2, 5, 9
"""Positions in the command line."""


_forked: tuple[list[bytes], int] | None = None


def become(arguments: list[bytes], launcher: int) -> None:
    """A fork: from now on this process is the stub with this command line."""
    global _forked
    _forked = arguments, launcher


def command_line(process: int | None = None) -> list[bytes]:
    """Of another process, or this one; empty where the process is gone."""
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
