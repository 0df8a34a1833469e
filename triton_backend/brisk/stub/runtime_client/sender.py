"""The sending side of a link. The caller holds the link's lock."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from typing import Protocol

from brisk.protocol.channel import send_bytes, send_changes
from brisk.protocol.codec import encode_record
from brisk.protocol.records import Record
from brisk.protocol.shared_memory.arena import Arena


class Sender(Protocol):
    """Records to the worker of the moment; none while ``is_open`` is False.

    A line that cannot be written is shut down, for whatever reason: the receiver then reads the
    end of it, makes a new one, and sends everything unanswered again.
    """

    @property
    def is_open(self) -> bool: ...

    def connect(self, connection: socket.socket) -> None:
        """Use ``connection`` from now on; announces all of the arena to its worker."""

    def send(self, record: Record) -> None:
        """Do nothing without a worker, or if it dies now: the replay will send it.

        Raises ProtocolError for a record that is too long.
        """

    def break_off(self) -> None:
        """Shut the line down; the receiver, which reads from it, closes it."""

    def forget(self) -> None:
        """The receiver has closed the connection."""


class DirectSender:
    """Sends in the caller's thread, which waits where the worker does not read.

    ``follower`` is the worker's name in the arena.
    """

    def __init__(self, arena: Arena, follower: str) -> None:
        self._arena = arena
        self._follower = follower
        self._socket: socket.socket | None = None

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def connect(self, connection: socket.socket) -> None:
        self._socket = connection
        try:
            send_changes(connection, self._arena.announce_all(self._follower))
        except OSError:
            self.break_off()  # it died already

    def send(self, record: Record) -> None:
        if self._socket is not None:
            self.send_encoded(encode_record(record))

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
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket = None

    def forget(self) -> None:
        self._socket = None


class QueuedSender:
    """Sends in a thread of its own: whoever has a record to send never waits for the worker.

    A background worker may not read for long: it gets only what the processors have left. The
    caller's next request may be a real-time one, for another worker.
    """

    def __init__(self, arena: Arena, follower: str) -> None:
        self._arena = arena
        self._follower = follower
        self._sending: _Sending | None = None
        self._is_open = False

    @property
    def is_open(self) -> bool:
        return self._is_open

    def connect(self, connection: socket.socket) -> None:
        line = DirectSender(self._arena, self._follower)
        self._sending = _Sending(line, connection, self._sending)
        self._is_open = True

    def send(self, record: Record) -> None:
        if self._is_open and self._sending is not None:
            self._sending.records.put(encode_record(record))

    def break_off(self) -> None:
        if self._is_open and self._sending is not None:
            self._sending.end()
        self._is_open = False

    def forget(self) -> None:
        self.break_off()


class _Sending:
    """A thread that sends to one worker until it is told to end."""

    def __init__(
        self, line: DirectSender, connection: socket.socket, previous: _Sending | None
    ) -> None:
        """``previous`` has been told to end."""
        self.records: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._connection = connection.dup()  # the receiver closes the other one when it likes
        self._thread = threading.Thread(
            target=self._run, args=(line, previous), name="brisk-sender", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # a send that waits ends with an error
        self.records.put(None)

    def _run(self, line: DirectSender, previous: _Sending | None) -> None:
        if previous is not None:
            previous._thread.join()  # else it could take arena changes that this worker must see
        with self._connection:
            line.connect(self._connection)
            while (data := self.records.get()) is not None:
                line.send_encoded(data)
