"""The processes of a server under measurement: their kinds, their processor time, their end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

_END_TIMEOUT_S = 20.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_MARKS = (
    (b"brisk: waits for stub", "launcher"),
    (b"brisk: forks stubs", "fork server"),
    (b"triton_python_backend_stub", "stub"),
    (b"brisk.runtime", "runtime"),
)

KINDS = ("tritonserver", "stub", "runtime")
"""Kinds of processes. ``stub`` includes the launchers that Triton takes for stubs, and the process
that forks these."""


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """One process of the server side; ``kind`` is one of KINDS."""

    pid: int
    kind: str


def processes_of(runtime: Path) -> list[int]:
    """Return the processes that were started with ``$BRISK_RUNTIME_DIR`` set to ``runtime``."""
    marker = f"BRISK_RUNTIME_DIR={runtime}".encode()
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is not ours
            if marker in (entry / "environ").read_bytes().split(b"\0"):
                pids.append(int(entry.name))
    return pids


def kind_of(command: bytes) -> str:
    """Return the kind by the command line. Workers and helpers keep their supervisor's."""
    return next((kind for mark, kind in _MARKS if mark in command), "tritonserver")


def server_processes(runtime: Path) -> list[ServerProcess]:
    """Return the living processes of a server whose runtime's directory is ``runtime``."""
    kinds = {pid: kind_of(_command(pid)) for pid in processes_of(runtime)}
    return [
        ServerProcess(pid, "stub" if kind in ("launcher", "fork server") else kind)
        for pid, kind in kinds.items()
    ]


def _command(pid: int) -> bytes:
    """Return the command line; empty for a process that has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def processor_s_of(pid: int) -> float:
    """Return user and system time of a process so far; 0 for one that has ended."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S  # 14 and 15 of all
    return 0.0


def end_processes(runtime: Path) -> None:
    """End the processes of a runtime, and wait until none is left.

    A runtime would end by itself soon after its last client. SIGKILL follows after _END_TIMEOUT_S.
    """
    deadline_s = time.monotonic() + _END_TIMEOUT_S
    while remaining := processes_of(runtime):
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if time.monotonic() < deadline_s else signal.SIGKILL)
        time.sleep(0.1)
