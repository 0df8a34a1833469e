"""The supervisor: holds the place, forks the worker, and replaces it when it dies.

It imports torch once, so that a worker is there milliseconds after a fork, and computes
nothing, ever: a process that has run any OpenMP region hangs in its children's first one. It
owns the listening socket, so a connection made while no worker lives waits in the queue of that
socket instead of being refused.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable

from brisk.runtime.saying import say
from brisk.wire.channel import new_socket
from brisk.wire.place import RuntimePlace

LISTEN_BACKLOG = 1024
WORKER_ENDED_IDLE = 0
"""Exit status of a worker that nobody needed any more."""

_RESTART_PAUSE_S = (0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.5, 1.0)
"""Pause before a restart, by how many workers in a row died within a second of their start."""

_SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}
_PR_SET_PDEATHSIG = 1


def listen(place: RuntimePlace) -> socket.socket:
    """The place's socket. Precondition: this process holds the place's lock."""
    place.socket_path.unlink(missing_ok=True)
    listener = new_socket()
    listener.bind(str(place.socket_path))
    os.chmod(place.socket_path, 0o600)
    listener.listen(LISTEN_BACKLOG)
    return listener


class Supervisor:
    """``work`` runs in the forked child and returns its exit status."""

    def __init__(self, listener: socket.socket, work: Callable[[socket.socket], int]) -> None:
        self._listener = listener
        self._work = work
        self._worker = 0
        self._started_s = 0.0
        self._quick_deaths = 0

    def run(self) -> None:
        """Until the worker ends idle and nobody waits, or SIGTERM or SIGINT comes."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._fork()
        while True:
            number = signal.sigwait(_SIGNALS)
            if number != signal.SIGCHLD:
                self._end_worker()
                return
            status = self._reap()
            if status is None:
                continue
            if status == WORKER_ENDED_IDLE and not self._is_awaited():
                return
            self._report(status)
            self._fork()

    def _fork(self) -> None:
        parent = os.getpid()
        self._started_s = time.monotonic()
        self._worker = os.fork()
        if self._worker:
            return
        status = 1
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:  # else the parent died before the line above
                status = self._work(self._listener)
        except BaseException:  # noqa: BLE001  # nothing may return into the supervisor's code
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)

    def _reap(self) -> int | None:
        """The worker's wait status as ``os.waitstatus_to_exitcode`` gives it; None if alive."""
        process, status = os.waitpid(self._worker, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if process else None

    def _is_awaited(self) -> bool:
        """Whether a frontend connected just as the last worker ended."""
        return bool(select.select([self._listener], [], [], 0)[0])

    def _report(self, status: int) -> None:
        if status == WORKER_ENDED_IDLE:
            return
        quick = time.monotonic() - self._started_s < 1.0
        self._quick_deaths = self._quick_deaths + 1 if quick else 0
        cause = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        say(f"worker {self._worker} died ({cause}); starting another, which gets its requests")
        time.sleep(_RESTART_PAUSE_S[min(self._quick_deaths, len(_RESTART_PAUSE_S) - 1)])

    def _end_worker(self) -> None:
        os.kill(self._worker, signal.SIGKILL)
        os.waitpid(self._worker, 0)
