"""One of the supervisor's workers: forked, watched, and started again when it has died."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence

from brisk import telemetry
from brisk.protocol.runtime_paths import Role
from brisk.runtime.log import say
from brisk.telemetry import metrics

WORKER_ENDED_IDLE = 0
"""Exit status of a worker that nobody needed any more."""

_RESTART_PAUSE_S = (0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.5, 1.0)
"""Pause before a restart, by how many workers in a row died within a second of their start."""

_NAMES = {Role.FOREGROUND: "brisk-fore", Role.BACKGROUND: "brisk-back"}
"""What the processes are called, in ``top`` for instance; at most 15 characters."""

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


class WorkerSlot:
    """Where at most one worker lives at a time.

    ``listeners`` are the sockets it serves, ``work`` what it does; its result is the worker's exit
    status. ``on_death`` is called when it has ended, however, and before its number is another's.
    ``handle`` is readable then; None where the kernel has no such descriptors (before 5.3).
    """

    def __init__(
        self,
        role: Role,
        listeners: Sequence[socket.socket],
        work: Callable[[Sequence[socket.socket]], int],
        on_death: Callable[[], None],
    ) -> None:
        self.role = role
        self.name = _NAMES[role]
        self.listeners = listeners
        self.process = 0
        self.handle: int | None = None
        self._work = work
        self._on_death = on_death
        self._started_s = 0.0
        self._quick_deaths = 0
        self._due_s: float | None = None

    @property
    def pause_s(self) -> float | None:
        """Seconds until a worker that died is to be replaced; None where none is."""
        return None if self._due_s is None else max(0.0, self._due_s - time.monotonic())

    def is_awaited(self) -> bool:
        """Whether a frontend has connected that no worker has seen yet."""
        return bool(select.select(self.listeners, [], [], 0)[0])

    def fork(self, prepare: Callable[[], None]) -> None:
        """Start a worker; ``prepare`` is called in it first."""
        parent = os.getpid()
        is_replacing = self._due_s is not None
        self._due_s = None
        self._started_s = time.monotonic()
        self.process = os.fork()
        if self.process:
            with contextlib.suppress(OSError, AttributeError):
                self.handle = os.pidfd_open(self.process)
            return
        status = 1
        try:
            prepare()
            library = ctypes.CDLL(None)
            library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            library.prctl(_PR_SET_NAME, self.name.encode())
            telemetry.count(metrics.WORKER_RESTARTS, (self.role.value,), int(is_replacing))
            if os.getppid() == parent:  # else the parent died before the line above
                status = self._work(self.listeners)
        except BaseException:  # noqa: BLE001  # nothing may return into the supervisor's code
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)

    def reap(self) -> None:
        """Note whether the worker has ended; one that died is to be replaced after a pause."""
        if not self.process:
            return
        if os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
        self._on_death()
        process = self.process
        exit_status = self._collect()
        if exit_status == WORKER_ENDED_IDLE:
            return
        quick = time.monotonic() - self._started_s < 1.0
        self._quick_deaths = self._quick_deaths + 1 if quick else 0
        is_signal = exit_status < 0
        cause = signal.Signals(-exit_status).name if is_signal else f"exit status {exit_status}"
        say(
            f"worker {process} ({self.name}) died ({cause}); starting another, "
            "which gets its requests"
        )
        pause_s = _RESTART_PAUSE_S[min(self._quick_deaths, len(_RESTART_PAUSE_S) - 1)]
        self._due_s = time.monotonic() + pause_s

    def end(self) -> None:
        if self.process:
            os.kill(self.process, signal.SIGKILL)
            self._collect()

    def _collect(self) -> int:
        """Let the kernel forget the worker, which has ended; its exit status."""
        _, status = os.waitpid(self.process, 0)
        self.process = 0
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None
        return os.waitstatus_to_exitcode(status)
