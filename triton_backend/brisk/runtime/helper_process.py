"""A process beside a worker, for work that must slow no request: one at a time, started again.

It runs a module of Brisk's on processors that are idle (``brisk.os_priority.step_aside``). When to
start it again is for its owner to say.
"""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import time
from typing import IO


class HelperProcess:
    """At most one process, ``python -m MODULE``. Used by one thread, ``process_id`` by any.

    The kernel ends the process with the thread that has started it, which therefore is one that
    lives as long as the worker.
    """

    def __init__(self, module: str, *, is_asked: bool = False) -> None:
        """``is_asked``: its owner writes to its standard input and reads its standard output."""
        self._module = module
        self._is_asked = is_asked
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = -math.inf

    @property
    def process_id(self) -> int | None:
        """None: there is none."""
        process = self._process
        return None if process is None else process.pid

    @property
    def age_s(self) -> float:
        """Seconds since the last one was started, or was to be; infinite before the first."""
        return time.monotonic() - self._started_s

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """Where it is asked, and where it answers. Precondition: there is one, which is asked."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def start(self, *arguments: str) -> None:
        """Precondition: there is none. Raises OSError where the system has no room for one."""
        self._started_s = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module, *arguments],
            stdin=subprocess.PIPE if self._is_asked else subprocess.DEVNULL,
            stdout=subprocess.PIPE if self._is_asked else None,
        )

    def ended(self, timeout_s: float = 0.0) -> int | None:
        """Exit status of the process, which is forgotten; None while it goes on, after a time-out,
        and where there is none.
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
        """Exit status of the process, once it ends. Precondition: there is one."""
        assert self._process is not None
        return self._process.wait()

    def kill(self) -> None:
        """Have the process end now; ``ended`` tells when it has."""
        if self._process is not None:
            self._process.kill()

    def end(self) -> None:
        """End the process, if there is one, and wait for that."""
        self.kill()
        self._forget()

    def _forget(self) -> None:
        """Close its pipes, and wait for its end."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(BrokenPipeError), process:
                pass
