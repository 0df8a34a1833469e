"""The adaptation process, from the worker's side: started when there is something to learn from.

Used by one thread, which lives as long as the worker: the kernel ends the process with it.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from brisk.exits.adaptation.reference import reference_file
from brisk.exits.files.versions import caches_file, samples_folder
from brisk.runtime.log import say

_Task = tuple[tuple[str, int], ...]
"""Models and when their caches were trained (mtime, ns): another set takes another process."""


class Adaptation:
    """One process for all models. ``interval_s`` 0: none.

    It is the time between two retrainings, and from the start of a process that failed to that of
    the next one.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._process: subprocess.Popen[bytes] | None = None
        self._task: _Task = ()
        self._started_s = -math.inf
        self._is_done = False

    def look(self, models: Iterable[Path]) -> None:
        """Let a process learn for those of ``models`` that can, and for no others."""
        task = (
            tuple(sorted(filter(None, map(_learnable, set(models))))) if self._interval_s else ()
        )
        if task != self._task:
            self.end()
            self._task, self._is_done = task, False
            if task and find_spec("torch") is None:
                self._is_done = True
                say(
                    "learned caches stay as they were trained: to learn from the traffic takes "
                    f"torch, which {sys.executable} does not have (brisk-triton[train])"
                )
        if self._process is not None:
            status = self._process.poll()
            if status is None:
                return
            self._process, self._is_done = None, status == 0
            if status:
                say(f"the adaptation of learned caches ended with status {status}")
        if task and not self._is_done and time.monotonic() - self._started_s >= self._interval_s:
            self._start([model for model, _ in task])

    def end(self) -> None:
        """End the process; what it publishes is whole wherever it is ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._started_s = -math.inf

    def _start(self, models: list[str]) -> None:
        command = [sys.executable, "-m", "brisk.runtime.early_exit.adaptation_process"]
        command += ["--interval", str(self._interval_s), *models]
        self._started_s = time.monotonic()
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)


def _learnable(model: Path) -> tuple[str, int] | None:
    """The model, where it has caches, data of their training, and samples."""
    try:
        trained_ns = caches_file(model).stat().st_mtime_ns
    except FileNotFoundError:
        return None
    if not reference_file(model).exists() or not any(samples_folder(model).glob("*.npz")):
        return None
    return str(model), trained_ns
