"""A process next to a worker for work that must slow no request: one at a time, started again.

It runs one of Brisk's modules only on idle processors (``brisk.os_priority.step_aside``). Its
owner decides when to start it again.
"""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import time
from typing import IO


class HelperProcess:
    """At most one process, ``python -m MODULE``. Used by one thread; any may read ``process_id``.

    The kernel ends the process with the thread that has started it, so that thread must live as
    long as the worker.
    """

    def __init__(self, module: str, *, is_asked: bool = False) -> None:
        """``is_asked``: the owner writes to the process's standard input and reads its output."""
        self._module = module
        self._is_asked = is_asked
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = -math.inf

    @property
    def process_id(self) -> int | None:
        """The number of the process; None: there is none."""
        process = self._process
        return None if process is None else process.pid

    @property
    def age_s(self) -> float:
        """Seconds since a process was last started, or was to be; infinite before the first."""
        return time.monotonic() - self._started_s

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """The process's standard input and output. Precondition: it exists, and ``is_asked``."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def start(self, *arguments: str) -> None:
        """Start a process. Precondition: there is none. Raises OSError if the system refuses."""
        self._started_s = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module, *arguments],
            stdin=subprocess.PIPE if self._is_asked else subprocess.DEVNULL,
            stdout=subprocess.PIPE if self._is_asked else None,
        )

    def ended(self, timeout_s: float = 0.0) -> int | None:
        """Return the exit status of the process, which is forgotten. Return None if it goes on
        after the time-out, or if there is none.
        """
        if self._process is None:
            return None
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        self._forget()
        return status

    def wait(self) -> int:
        """Wait for the process to end; return its exit status. Precondition: there is one."""
        assert self._process is not None
        return self._process.wait()

    def kill(self) -> None:
        """Have the process end now; ``ended`` reports when it has."""
        if self._process is not None:
            self._process.kill()

    def end(self) -> None:
        """End the process, if there is one, and wait for its end."""
        self.kill()
        self._forget()

    def _forget(self) -> None:
        """Close the pipes of the process, and wait for its end."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(BrokenPipeError), process:
                pass
