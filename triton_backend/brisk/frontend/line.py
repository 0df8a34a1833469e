"""The sending side of a connection. The caller holds the connection's lock."""

from __future__ import annotations

import contextlib
import socket

from brisk.wire.arena import Arena
from brisk.wire.channel import send_record, slab_records
from brisk.wire.records import Record


class Line:
    """Records to the worker of the moment; none while ``is_open`` is False.

    A line that cannot be written is shut down, for whatever reason: the receiver then reads the
    end of it, makes a new one, and sends everything unanswered again.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._socket: socket.socket | None = None

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def connect(self, connection: socket.socket) -> None:
        """Use ``connection`` from now on; announces all of the arena to its worker."""
        self._socket = connection
        try:
            for change, descriptor in slab_records(self._arena.announce_all()):
                send_record(connection, change, descriptor)
        except OSError:
            self.break_off()  # it died already

    def send(self, record: Record) -> None:
        """Do nothing without a worker, or if it dies now: the replay will send it.

        Raises ProtocolError for a record that is too long.
        """
        if self._socket is None:
            return
        try:
            for change, descriptor in slab_records(self._arena.take_changes()):
                send_record(self._socket, change, descriptor)
            send_record(self._socket, record)
        except OSError:
            self.break_off()

    def break_off(self) -> None:
        """Shut the line down; the receiver, which reads from it, closes it."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket = None

    def forget(self) -> None:
        """The receiver has closed the connection."""
        self._socket = None
