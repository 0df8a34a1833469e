"""The processes of a runtime, found from outside."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from brisk.triton.launch import TritonServer
from support.server.running import runtime_directory


def processes_started_in(runtime_directory: Path) -> list[int]:
    """Processes that were started with ``$BRISK_RUNTIME_DIR`` set to the directory."""
    marker = f"BRISK_RUNTIME_DIR={runtime_directory}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if marker in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def runtime_processes(server: TritonServer) -> tuple[int, int]:
    """The supervisor and its worker."""
    found = [
        process
        for process in processes_started_in(runtime_directory(server))
        if b"brisk.runtime" in Path(f"/proc/{process}/cmdline").read_bytes()
    ]
    (worker,) = [process for process in found if parent_of(process) in found]
    return parent_of(worker), worker


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
