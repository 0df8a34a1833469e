"""The supervisor: holds the place, forks the workers, and replaces them when they die.

It imports torch once, so that a worker is there milliseconds after a fork, and computes
nothing, ever: a process that has run any OpenMP region hangs in its children's first one. It
owns the listening sockets, so a connection made while no worker lives waits in the queue of that
socket instead of being refused. A worker that nobody has asked for yet is not there: a runtime
without best-effort requests has no background worker.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator, Sequence

from brisk.protocol.runtime_paths import Role, RuntimePaths, new_socket
from brisk.runtime.worker_slot import WorkerSlot

LISTEN_BACKLOG = 1024
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

UNWATCHED_S = 0.1
"""Time between two looks at workers whose end the kernel does not tell."""


def listen(place: RuntimePaths, role: Role) -> socket.socket:
    """The place's socket. Precondition: this process holds the place's lock."""
    path = place.socket_path(role)
    path.unlink(missing_ok=True)
    listener = new_socket()
    listener.bind(str(path))
    os.chmod(path, 0o600)
    listener.listen(LISTEN_BACKLOG)
    return listener


class Supervisor:
    """Of the ``slots``, the first has a worker from the start, the others when asked for."""

    def __init__(self, slots: Sequence[WorkerSlot]) -> None:
        self._slots = slots
        self._is_told_to_end = False

    def run(self) -> None:
        """Until all workers ended idle and nobody waits, or SIGTERM or SIGINT comes."""
        with _alarmed(self._note) as alarm:
            self._fork(self._slots[0])
            while not self._is_told_to_end:
                self._wait(alarm)
                for slot in self._slots:
                    slot.reap()
                for slot in self._slots:
                    self._restart(slot)
                if not any(slot.process or slot.pause_s is not None for slot in self._slots):
                    return
            for slot in self._slots:
                slot.end()

    def _note(self, number: int) -> None:
        self._is_told_to_end = True

    def _wait(self, alarm: int) -> None:
        """Until a signal, the end of a worker, a connection that none serves, or that of a pause.

        A worker that is only stopped wakes nobody, as its SIGCHLD would.
        """
        vacant = [slot for slot in self._slots if not slot.process]
        living = [slot for slot in self._slots if slot.process]
        handles = [slot.handle for slot in living if slot.handle is not None]
        pauses = [slot.pause_s for slot in vacant if slot.pause_s is not None]
        if len(handles) < len(living):
            pauses.append(UNWATCHED_S)
        unserved = [
            listener for slot in vacant if slot.pause_s is None for listener in slot.listeners
        ]
        watched: list[int | socket.socket] = [alarm, *handles, *unserved]
        ready, _, _ = select.select(watched, [], [], min(pauses) if pauses else None)
        if alarm in ready:
            os.read(alarm, 4096)

    def _restart(self, slot: WorkerSlot) -> None:
        """Fork where a worker has died and its pause is over, or where one is asked for."""
        if slot.process:
            return
        if slot.is_awaited() if slot.pause_s is None else slot.pause_s <= 0:
            self._fork(slot)

    def _fork(self, slot: WorkerSlot) -> None:
        """The signals stay blocked until the child has left the supervisor's handlers."""

        def prepare() -> None:
            signal.set_wakeup_fd(-1)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            for other in self._slots:
                if other is not slot:
                    for listener in other.listeners:
                        listener.close()

        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        slot.fork(prepare)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


@contextlib.contextmanager
def _alarm_pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


@contextlib.contextmanager
def _alarmed(note: Callable[[int], None]) -> Iterator[int]:
    """While entered: ``note`` is told every signal, and the descriptor is readable then."""
    with _alarm_pipe() as (reading, writing):
        before = {
            number: signal.signal(number, lambda number, _: note(number)) for number in _SIGNALS
        }
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        try:
            yield reading
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)
