"""Artefacts made in the background: one process at a time, on processors that are idle.

It is a process of its own because it must slow no request: not by the interpreter's lock, not by
the allocator, not by memory that it leaves behind; and whatever it dies of, the worker lives.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

from brisk.runtime.saying import say

DELAY_S = 5.0
"""From a load to the start of its build: who stays for less needs none, starting comes first."""


class ArtefactBuilder:
    """Builds the artefacts asked for, one after the other."""

    def __init__(self, device: str, threads: int, delay_s: float = DELAY_S) -> None:
        self._device = device
        self._threads = threads
        self._delay_s = delay_s
        self._tasks: queue.SimpleQueue[tuple[float, Path]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def build_later(self, model: Path) -> None:
        """Have the artefact of ``model`` built; nothing happens where another process does it."""
        self._tasks.put((time.monotonic() + self._delay_s, model))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="brisk-artefacts", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            due_s, model = self._tasks.get()
            time.sleep(max(due_s - time.monotonic(), 0.0))
            self._build(model)

    def _build(self, model: Path) -> None:
        command = [sys.executable, "-m", "brisk.runtime.artefact_process"]
        command += ["--device", str(self._device), "--threads", str(self._threads), str(model)]
        try:
            # this thread lives as long as the worker: the kernel ends the builder with it
            status = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
        except OSError as error:
            say(f"the artefact of {model} cannot be built: {error}")
            return
        if status:
            say(f"building the artefact of {model} ended with status {status}")
