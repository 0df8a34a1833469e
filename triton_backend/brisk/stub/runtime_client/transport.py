"""The two directions of the connection to a worker: its senders and its reader."""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from brisk.protocol.channel import Receiver, encode_record, send_bytes, send_changes
from brisk.protocol.records import Record
from brisk.protocol.shared_memory import Arena


class DirectSender:
    """A sender in the caller's thread, which waits while the worker does not read.

    A connection that cannot be written, for whatever reason, is shut down: the receiver then reads
    its end, makes a new one, and sends everything unanswered again. The caller holds the
    connection's lock. ``follower`` is the worker's name in the arena.
    """

    def __init__(self, arena: Arena, follower: str) -> None:
        self._arena = arena
        self._follower = follower
        self._socket: socket.socket | None = None

    def connect(self, connection: socket.socket) -> None:
        """Send over ``connection`` from now on; announce the whole arena to its worker."""
        self._socket = connection
        try:
            send_changes(connection, self._arena.announce_all(self._follower))
        except OSError:
            self.break_off()  # the worker has ended already

    def send(self, record: Record) -> bool:
        """Send a record. Return False if there is no worker, or it ends now: then the replay sends
        unanswered records.

        Raises ProtocolError for a record that is too long.
        """
        self.send_encoded(encode_record(record))
        return self._socket is not None

    def send_encoded(self, data: bytes) -> None:
        if self._socket is None:
            return
        try:
            if changes := self._arena.take_changes(self._follower):
                send_changes(self._socket, changes)
            send_bytes(self._socket, data, None)
        except OSError:
            self.break_off()

    def break_off(self) -> None:
        """Shut the connection down, if there is one; the receiver, which reads from it, closes
        it."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket = None


class QueuedSender:
    """A sender like DirectSender, in its own thread: callers never wait.

    A background worker may not read for long, since it gets only idle processors. The caller's
    next request may be a real-time one, for another worker.
    """

    def __init__(self, arena: Arena, follower: str) -> None:
        self._line = DirectSender(arena, follower)
        self._connection: socket.socket | None = None
        self._records: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def connect(self, connection: socket.socket) -> None:
        """Send over ``connection`` from now on. Raises OSError or RuntimeError if the system has
        no descriptor or thread left; then there is no connection."""
        own = connection.dup()  # the receiver closes the other one when it likes
        records: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        thread = threading.Thread(
            target=self._run, args=(own, records, self._thread), name="brisk-sender", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            own.close()
            raise
        self._connection, self._records, self._thread = own, records, thread

    def send(self, record: Record) -> bool:
        data = encode_record(record)
        if self._connection is not None:
            self._records.put(data)
        return self._connection is not None

    def break_off(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):  # a send that waits ends with an error
                self._connection.shutdown(socket.SHUT_RDWR)
            self._records.put(None)
            self._connection = None

    def _run(
        self,
        connection: socket.socket,
        records: queue.SimpleQueue[bytes | None],
        previous: threading.Thread | None,
    ) -> None:
        if previous is not None:
            previous.join()  # else it could take arena changes that this worker must see
        with connection:
            self._line.connect(connection)
            while (data := records.get()) is not None:
                self._line.send_encoded(data)


Sender: TypeAlias = "DirectSender | QueuedSender"


class Reader:
    """A reader that passes each record to ``take``, one at a time and in order.

    The receiver's thread sleeps in ``read`` until a record comes. A thread that expects an answer
    at once reads it itself (``attend``): that saves waking the receiver's thread to have it wake
    this one, twice 30 to 50 microseconds on a virtual machine. Meanwhile the receiver's thread
    sleeps on, since it would wake for nothing and delay the reading thread. The lock is held from
    before a record is read until ``take`` has returned.
    """

    def __init__(
        self, take: Callable[[Record, int | None], None], break_off: Callable[[], None]
    ) -> None:
        """Make a reader without a connection. ``break_off``: ends the connection, which wakes the
        receiver's thread."""
        self._take = take
        self._break_off = break_off
        self._lock = threading.Lock()
        self._receiver: Receiver | None = None
        self._sleeping: select.epoll | None = None
        """The epoll in which the receiver's thread sleeps, which watches for nothing while another
        thread reads; None without a connection."""
        self._looking: select.poll | None = None
        self._descriptor = -1
        self._failure: Exception | None = None

    def use(self, connection: socket.socket | None) -> None:
        """Read from ``connection`` from now on, or from none. Only the receiver's thread calls
        this, or the one that starts it.

        Raises OSError if the system has no descriptor left; then there is no connection.
        """
        with self._lock:
            self._failure = None
            self._receiver = None if connection is None else Receiver(connection)
            self._sleeping = self._looking = None
            if connection is not None:
                sleeping, looking = select.epoll(), select.poll()
                self._descriptor = connection.fileno()
                sleeping.register(self._descriptor, select.EPOLLIN)
                looking.register(self._descriptor, select.POLLIN)
                self._sleeping, self._looking = sleeping, looking

    def read(self) -> None:
        """Wait for a record and pass it to ``take``, unless another thread has read it. Only the
        receiver's thread calls this.

        Raises EOFError if the connection has ended or there is none, and what ``take`` and the
        socket raised, in this thread or an attending one.
        """
        if self._sleeping is None:
            raise EOFError("no connection")
        self._sleeping.poll()
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self._read_one()

    def attend(self, is_over: Callable[[], bool], awake_ns: int, asleep_ns: int = 0) -> bool:
        """Read until ``is_over``, for ``awake_ns`` without sleeping, then for ``asleep_ns`` with;
        any thread may call.

        Return False if another thread is reading, or there is no connection.
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
        """Read records as ``attend`` describes. Precondition: the caller holds the lock."""
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
        """Read a record and pass it to ``take``, if there is one. Precondition: the caller holds
        the lock."""
        assert self._receiver is not None
        try:
            record, descriptor = self._receiver.receive(wait=False)
        except BlockingIOError:
            return
        self._take(record, descriptor)
