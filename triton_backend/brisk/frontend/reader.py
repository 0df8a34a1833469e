"""Reading what a worker sends, in whichever thread has most use for it."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable

from brisk.wire.channel import Receiver
from brisk.wire.records import Record


class Reader:
    """Hands each record to ``take``, one at a time and in order.

    The receiver's thread sleeps in ``read`` until there is one. A thread that expects an answer at
    once reads meanwhile itself (``attend``): that saves waking the one thread to have it wake the
    other, twice 30 to 50 microseconds on a virtual machine. The lock is held from before a record
    is read until it has been taken.
    """

    def __init__(
        self, take: Callable[[Record, int | None], None], break_off: Callable[[], None]
    ) -> None:
        """``break_off``: ends the connection, which wakes the receiver's thread."""
        self._take = take
        self._break_off = break_off
        self._lock = threading.Lock()
        self._receiver: Receiver | None = None
        self._sleeping: select.poll | None = None
        self._looking: select.poll | None = None
        """Two, because a poll object is for one thread at a time."""
        self._failure: Exception | None = None

    def use(self, connection: socket.socket | None) -> None:
        """Read from ``connection`` from now on, or from none. The receiver's thread."""
        with self._lock:
            self._failure = None
            self._receiver = None if connection is None else Receiver(connection)
            self._sleeping = self._looking = None
            if connection is not None:
                self._sleeping, self._looking = _poll_of(connection), _poll_of(connection)

    def read(self) -> None:
        """Wait for a record and take it, or see that another thread has. The receiver's thread.

        Raises EOFError where the connection has ended or there is none, and what ``take`` and the
        socket raise, in whichever thread.
        """
        if self._sleeping is None:
            raise EOFError("no connection")
        self._sleeping.poll()
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self._read_one()

    def attend(self, is_over: Callable[[], bool], timeout_ns: int) -> None:
        """Read without ever sleeping until ``is_over``, or for ``timeout_ns``; any thread."""
        if not self._lock.acquire(blocking=False):
            return  # the receiver's thread is at it
        try:
            poll, until_ns = self._looking, time.monotonic_ns() + timeout_ns
            while poll is not None and not is_over():
                if poll.poll(0):
                    self._read_one()
                elif time.monotonic_ns() > until_ns:
                    return
        except Exception as error:  # noqa: BLE001  # the receiver's thread raises it again
            self._failure = error
            self._break_off()
        finally:
            self._lock.release()

    def _read_one(self) -> None:
        """The lock is held."""
        assert self._receiver is not None
        try:
            record, descriptor = self._receiver.receive(wait=False)
        except BlockingIOError:
            return
        self._take(record, descriptor)


def _poll_of(connection: socket.socket) -> select.poll:
    made = select.poll()
    made.register(connection, select.POLLIN)
    return made
