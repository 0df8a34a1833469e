"""The processes of a runtime, found from outside."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path


def processes_started_in(runtime_directory: Path) -> list[int]:
    """Return the processes that were started with ``$BRISK_RUNTIME_DIR`` set to the directory."""
    marker = f"BRISK_RUNTIME_DIR={runtime_directory}".encode()
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if marker in (entry / "environ").read_bytes().split(b"\0"):
                    processes.append(int(entry.name))
    return processes


def hurry_helpers(runtime_directory: Path) -> None:
    """Give helper processes of the runtime, which get idle processors only, their share of others.

    This is for tests that wait for a helper's work while other tests leave little idle. Nothing
    happens where it is refused.
    """
    hurry(processes_started_in(runtime_directory))


def hurry(processes: Iterable[int]) -> None:
    """Give those of ``processes`` that get idle processors only their share of others."""
    for process in processes:
        with contextlib.suppress(OSError):
            if os.sched_getscheduler(process) == os.SCHED_IDLE:
                os.sched_setscheduler(process, os.SCHED_OTHER, os.sched_param(0))


def hurry_best_effort(runtime_directory: Path) -> None:
    """Let a runtime's workers of niceness 19 have as much of the processors as anybody.

    Next to two busy processes a second of computing takes minutes there. This is for tests of
    which the niceness is no subject; nothing happens where it is refused.
    """
    for process in processes_started_in(runtime_directory):
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{process}/task").iterdir():
                if os.getpriority(os.PRIO_PROCESS, int(thread.name)) > 0:
                    os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)


@contextlib.contextmanager
def hurrying_best_effort(runtime_directory: Path) -> Iterator[None]:
    """Call ``hurry_best_effort`` twice a second, also for workers that are still to come."""
    ended = threading.Event()

    def go_on() -> None:
        while not ended.wait(0.5):
            hurry_best_effort(runtime_directory)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def state_of(process: int) -> str:
    """Return the letter of a process's state (proc(5)): R, S, T for one that is stopped, Z …"""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def processor_s(process: int) -> float:
    """Return the processor time that a process has had."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children() -> list[int]:
    """Return the processes that this one's threads have started."""
    lists = Path("/proc/self/task").glob("*/children")
    return [int(number) for each in lists for number in each.read_text().split()]
