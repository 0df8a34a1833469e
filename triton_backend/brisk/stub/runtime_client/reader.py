"""Reading what a worker sends, in whichever thread has most use for it."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable

from brisk.protocol.channel import Receiver
from brisk.protocol.records import Record


class Reader:
    """Hands each record to ``take``, one at a time and in order.

    The receiver's thread sleeps in ``read`` until there is one. A thread that expects an answer at
    once reads meanwhile itself (``attend``): that saves waking the one thread to have it wake the
    other, twice 30 to 50 microseconds on a virtual machine. The receiver's thread sleeps on then:
    it would wake to find nothing, in the way of whoever reads. The lock is held from before a
    record is read until it has been taken.
    """

    def __init__(
        self, take: Callable[[Record, int | None], None], break_off: Callable[[], None]
    ) -> None:
        """``break_off``: ends the connection, which wakes the receiver's thread."""
        self._take = take
        self._break_off = break_off
        self._lock = threading.Lock()
        self._receiver: Receiver | None = None
        self._sleeping: select.epoll | None = None
        """What the receiver's thread sleeps on; asks for nothing while another thread reads."""
        self._looking: select.poll | None = None
        self._descriptor = -1
        self._failure: Exception | None = None

    def use(self, connection: socket.socket | None) -> None:
        """Read from ``connection`` from now on, or from none. The receiver's thread."""
        with self._lock:
            self._failure = None
            self._receiver = None if connection is None else Receiver(connection)
            self._sleeping = self._looking = None
            if connection is not None:
                self._descriptor = connection.fileno()
                self._sleeping, self._looking = select.epoll(), select.poll()
                self._sleeping.register(self._descriptor, select.EPOLLIN)
                self._looking.register(self._descriptor, select.POLLIN)

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

    def attend(self, is_over: Callable[[], bool], awake_ns: int, asleep_ns: int = 0) -> bool:
        """Read until ``is_over``, for so long without sleeping, then asleep; any thread.

        False where it did not read: the receiver's thread is at it, or there is no connection.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._sleeping is None:
                return False
            self._sleeping.modify(self._descriptor, 0)
            try:
                self._look(is_over, awake_ns, asleep_ns)
            finally:
                self._sleeping.modify(self._descriptor, select.EPOLLIN)
        except Exception as error:  # noqa: BLE001  # the receiver's thread raises it again
            self._failure = error
            self._break_off()
        finally:
            self._lock.release()
        return True

    def _look(self, is_over: Callable[[], bool], awake_ns: int, asleep_ns: int) -> None:
        """The lock is held."""
        poll = self._looking
        assert poll is not None
        awake_until_ns = time.monotonic_ns() + awake_ns
        until_ns = awake_until_ns + asleep_ns
        patience_ms = 0.0
        while not is_over():
            if poll.poll(patience_ms):
                self._read_one()
                continue
            now_ns = time.monotonic_ns()
            if now_ns >= until_ns:
                return
            if now_ns >= awake_until_ns:
                patience_ms = (until_ns - now_ns) / 1e6

    def _read_one(self) -> None:
        """The lock is held."""
        assert self._receiver is not None
        try:
            record, descriptor = self._receiver.receive(wait=False)
        except BlockingIOError:
            return
        self._take(record, descriptor)
