"""Starting the runtime of a device, where there is none."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from brisk.errors import BriskError, InvalidConfigurationError
from brisk.os_priority import process_niceness
from brisk.protocol.host.runtime_paths import RuntimePaths, runtime_place

if TYPE_CHECKING:  # a stub that finds its runtime does without
    import subprocess

NICENESS = process_niceness()
"""Of this process when it began, and so the server's: a stub of a real-time model changes its own,
and what it starts is for all models."""

_GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))

_lock = threading.Lock()
"""Guards the two lists: connections to both workers are made by threads of their own."""

_starting: list[tuple[RuntimePaths, subprocess.Popen[bytes]]] = []
"""Runtimes that this process has started and that have not answered yet."""

_running: list[subprocess.Popen[bytes]] = []
"""Those that have; polled so that none stays behind as a zombie."""


def start_early() -> None:
    """Start the runtime before it is known which one is needed, where there can be only one.

    For a stub that is about to import the rest of the frontend, which takes as long as a tenth of
    the runtime's start. What goes wrong is said when the runtime is needed.
    """
    if any(driver.exists() for driver in _GPU_DRIVERS):
        return
    with contextlib.suppress(BriskError, OSError):
        start_if_absent(runtime_place("cpu"))


def start_if_absent(
    place: RuntimePaths, starter: subprocess.Popen[bytes] | None = None
) -> subprocess.Popen[bytes] | None:
    """Start a runtime unless one holds the place or ours is still on its way; waits for nothing.

    ``starter``: what the last call gave. Raises InvalidConfigurationError where that has failed.
    """
    if starter is None:
        reap_started()
        with _lock:
            starter = next((process for where, process in _starting if where == place), None)
    if starter is not None:
        status = starter.poll()
        if status is None:
            return starter
        if status != 0:
            raise InvalidConfigurationError(
                f"the runtime of {place.device} ended with status {status} while it started; "
                "its own words are in the server's log"
            )
    place.prepare()
    try:
        lock = place.try_lock()
    except OSError as error:
        raise InvalidConfigurationError(
            f"the lock {place.lock_path} cannot be used: {error}"
        ) from error
    if lock is None:
        return None
    os.close(lock)  # nobody is there; of several frontends that start one now, one gets the lock
    reap_started()
    from brisk.stub.runtime_client.spawning import spawn

    process = spawn(place, NICENESS)
    with _lock:
        _starting.append((place, process))
    return process


def note_answered(place: RuntimePaths) -> None:
    """The runtime of ``place`` is there: if it ends now, it has not failed to start."""
    with _lock:
        _running.extend(process for where, process in _starting if where == place)
        _starting[:] = [each for each in _starting if each[0] != place]


def reap_started() -> None:
    """Take the exit status of runtimes that have ended."""
    with _lock:
        _starting[:] = [each for each in _starting if each[1].poll() is None]
        _running[:] = [process for process in _running if process.poll() is None]
