"""The processes of a runtime, found from outside."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


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


def hurry_helpers(runtime_directory: Path) -> None:
    """Give helper processes of the runtime, which get idle processors only, their share of others.

    For tests that wait for what one makes while other tests run beside, which leave little idle.
    Nothing where it is refused.
    """
    for process in processes_started_in(runtime_directory):
        with contextlib.suppress(OSError):
            if os.sched_getscheduler(process) == os.SCHED_IDLE:
                os.sched_setscheduler(process, os.SCHED_OTHER, os.sched_param(0))
