"""The supervisor: holds the place, forks the workers, and replaces them when they die.

It imports everything once, so that a worker is there milliseconds after a fork. It never
computes: a process that has run any OpenMP region hangs in its children's first one. It owns the
listening sockets, so a connection made while no worker lives waits in the queue of that socket
instead of being refused. The background worker starts only when a stub connects to it: a runtime
without best-effort requests has none.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from brisk import telemetry
from brisk.posix import end_with_parent, name_process
from brisk.protocol.runtime_paths import WORKER_NAMES, Role, RuntimePaths, new_socket
from brisk.runtime.heartbeat import LOOK_S, StallWatch
from brisk.runtime.log import LOGGER
from brisk.telemetry import metrics

LISTEN_BACKLOG = 1024
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

FORK_PAUSE_S = 0.5
"""Time between two attempts to start a worker while the system has no room for a process."""

UNWATCHED_S = 0.1
"""Time between two looks at workers whose end the kernel does not report."""

WORKER_ENDED_IDLE = 0
"""The exit status of a worker that was needed no more."""

_RESTART_PAUSE_S = (0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 0.5, 1.0)
"""The pause before a restart, by how many workers in a row died within a second of their start."""


def listen(place: RuntimePaths, role: Role) -> socket.socket:
    """Return the place's socket. Precondition: this process holds the place's lock."""
    path = place.socket_path(role)
    path.unlink(missing_ok=True)
    listener = new_socket()
    listener.bind(str(path))
    os.chmod(path, 0o600)
    listener.listen(LISTEN_BACKLOG)
    return listener


@dataclass(slots=True, eq=False)
class WorkerSlot:
    """A place for at most one worker at a time.

    ``listeners``: the sockets that it serves. ``work``: what it does; the result is its exit
    status. ``on_death``: called when it has ended in any way, before another process gets its
    number. Its argument: whether the worker died, that is, ended neither idle nor by the
    supervisor nor by a signal to stop. ``stall``: reports whether it makes progress; None: it is
    not watched. ``handle``: a descriptor that is readable when it has ended; None if the kernel
    has none (before 5.3).
    """

    role: Role
    listeners: Sequence[socket.socket]
    work: Callable[[Sequence[socket.socket]], int]
    on_death: Callable[[bool], None]
    stall: StallWatch | None = None
    process: int = 0
    handle: int | None = None
    _started_s: float = 0.0
    _quick_deaths: int = 0
    _due_s: float | None = None
    _was_stopped: bool = False
    _was_ended: bool = False

    @property
    def pause_s(self) -> float | None:
        """Seconds until a worker that died is to be replaced; None if none is."""
        return None if self._due_s is None else max(0.0, self._due_s - time.monotonic())

    @property
    def is_due(self) -> bool:
        """Whether a worker has died and its pause is over, or a stub has connected that no worker
        has seen yet.
        """
        if self.process:
            return False
        if self.pause_s is not None:
            return self.pause_s <= 0
        return bool(select.select(self.listeners, [], [], 0)[0])

    def fork(self, slots: Sequence[WorkerSlot]) -> None:
        """Start a worker, which closes the listeners of the other ``slots``.

        The signals stay blocked until it has left the supervisor's handlers. If no further process
        can be started now, it is tried again after a pause.
        """
        parent = os.getpid()
        is_replacing = self._due_s is not None
        self._due_s, self._was_ended = None, False
        self._started_s = time.monotonic()
        if self.stall is not None:
            self.stall.begin()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            self.process = os.fork()
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            LOGGER.error(f"{WORKER_NAMES[self.role]} cannot be started now ({error}): tried again")
            self._due_s = self._started_s + FORK_PAUSE_S
            return
        if self.process:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            with contextlib.suppress(OSError, AttributeError):
                self.handle = os.pidfd_open(self.process)
            return
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            for slot in slots:
                for listener in slot.listeners if slot is not self else ():
                    listener.close()
            end_with_parent()
            name_process(WORKER_NAMES[self.role])
            telemetry.count(metrics.WORKER_RESTARTS, (self.role.value,), int(is_replacing))
            if os.getppid() == parent:  # else the parent died before the line above
                status = self.work(self.listeners)
        except BaseException:  # noqa: BLE001  # nothing may return into the supervisor's code
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)

    def reap(self) -> None:
        """Note whether the worker has ended; a worker that died is replaced after a pause."""
        if not self.process:
            return
        ended = os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return
        self.on_death(not self._was_ended and _has_died(ended))
        process = self.process
        exit_status = self._collect()
        if exit_status == WORKER_ENDED_IDLE:
            return
        is_quick = time.monotonic() - self._started_s < 1.0
        self._quick_deaths = self._quick_deaths + 1 if is_quick else 0
        LOGGER.warning(
            f"worker {process} ({WORKER_NAMES[self.role]}) died ({_cause(exit_status)}); starting "
            "another, which gets its requests"
        )
        pause_s = _RESTART_PAUSE_S[min(self._quick_deaths, len(_RESTART_PAUSE_S) - 1)]
        self._due_s = time.monotonic() + pause_s

    def end_if_stalled(self) -> None:
        """End a worker that makes no progress although a stub needs it."""
        if not self.process or self.stall is None:
            return
        if self._is_kept_stopped():
            LOGGER.error(
                f"worker {self.process} ({WORKER_NAMES[self.role]}) was stopped by a signal, and "
                "others wait for it: it is ended"
            )
            self._kill()
            return
        is_awaited = bool(select.select(self.listeners, [], [], 0)[0])
        if self.stall.has_stalled(is_awaited=is_awaited):
            LOGGER.error(
                f"worker {self.process} ({WORKER_NAMES[self.role]}) has not moved for "
                f"{self.stall.patience_s:g} s: it is ended"
            )
            self._kill()

    def _kill(self) -> None:
        self._was_ended = True
        os.kill(self.process, signal.SIGKILL)

    def _is_kept_stopped(self) -> bool:
        """Return whether the worker was stopped by a signal at this and the last look.

        Always False for the background worker, which the foreground worker may stop, and where
        the system does not tell.
        """
        was_stopped, self._was_stopped = self._was_stopped, False
        if self.role is Role.FOREGROUND:
            with contextlib.suppress(OSError):  # no descriptor is left to read it with
                status = Path(f"/proc/{self.process}/stat").read_text()
                self._was_stopped = status.rpartition(") ")[2][0] == "T"
        return was_stopped and self._was_stopped

    def end(self) -> None:
        if self.process:
            os.kill(self.process, signal.SIGKILL)
            self._collect()

    def _collect(self) -> int:
        """Let the kernel forget the worker, which has ended; return its exit status."""
        _, status = os.waitpid(self.process, 0)
        self.process = 0
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None
        return os.waitstatus_to_exitcode(status)


def _cause(exit_status: int) -> str:
    if exit_status >= 0:
        return f"exit status {exit_status}"
    with contextlib.suppress(ValueError):  # most real-time signals have no name
        return signal.Signals(-exit_status).name
    return f"signal {-exit_status}"


def _has_died(ended: os.waitid_result) -> bool:
    """Whether a worker that has ended did so by a fault; a signal to stop is none."""
    if ended.si_code == os.CLD_EXITED:
        return ended.si_status != WORKER_ENDED_IDLE
    return ended.si_status not in (*_SIGNALS, signal.SIGHUP)


def supervise(slots: Sequence[WorkerSlot]) -> None:
    """Run workers until all have ended idle and no restart is due, or SIGTERM or SIGINT comes.

    The first of the ``slots`` has a worker from the start, the others when asked for.
    """
    with _told_signals() as alarm:
        slots[0].fork(slots)
        while _wait(slots, alarm):
            for slot in slots:
                slot.end_if_stalled()
                slot.reap()
                if slot.is_due:
                    slot.fork(slots)
            if not any(slot.process or slot.pause_s is not None for slot in slots):
                return
        for slot in slots:
            slot.end()


def _wait(slots: Sequence[WorkerSlot], alarm: int) -> bool:
    """Wait for the end of a worker, a connection that no worker serves, the end of a pause, the
    next look at living workers, or a signal. Return False after a signal (``alarm``).

    A worker that is only stopped does not end the wait, as its SIGCHLD would.
    """
    vacant = [slot for slot in slots if not slot.process]
    living = [slot for slot in slots if slot.process]
    handles = [slot.handle for slot in living if slot.handle is not None]
    pauses = [slot.pause_s for slot in vacant if slot.pause_s is not None]
    if len(handles) < len(living):
        pauses.append(UNWATCHED_S)
    elif living:
        pauses.append(LOOK_S)
    unserved = [each for slot in vacant if slot.pause_s is None for each in slot.listeners]
    watched: list[int | socket.socket] = [alarm, *handles, *unserved]
    ready, _, _ = select.select(watched, [], [], min(pauses, default=None))
    return alarm not in ready


@contextlib.contextmanager
def _told_signals() -> Iterator[int]:
    """Open a context that yields a descriptor which is readable once a signal has come."""
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    before = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)
