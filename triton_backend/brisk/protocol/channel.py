"""One record per message over a SEQPACKET Unix socket, a descriptor beside some."""

from __future__ import annotations

import array
import os
import socket
import struct
from collections.abc import Sequence

from brisk import __version__
from brisk.errors import ProtocolError, named_error
from brisk.protocol.codec import MAX_RECORD_BYTES, decode_record, encode_record
from brisk.protocol.records import (
    PROTOCOL_VERSION,
    AttachSlab,
    ComputeInStub,
    Hello,
    Record,
    Refused,
    Welcome,
)
from brisk.protocol.shared_memory import SlabChange, close_descriptors

_CREDENTIALS = struct.Struct("3i")
_ANCILLARY_BYTES = socket.CMSG_SPACE(2 * array.array("i").itemsize)
"""Room for two descriptors: one more than any record carries, so that a surplus is noticed."""

_WITH_DESCRIPTOR = (AttachSlab, ComputeInStub)

_WAITING = socket.MSG_CMSG_CLOEXEC
_NOT_WAITING = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT


def check_peer(connection: socket.socket) -> int:
    """The other end's process number, as the kernel attests it.

    Raises ProtocolError unless it runs as our own user.
    """
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(data)
    if user != os.geteuid():
        raise ProtocolError(f"process {pid} of user {user} is not user {os.geteuid()}")
    return int(pid)


def send_bytes(connection: socket.socket, data: bytes, descriptor: int | None) -> None:
    """One message; OSError as the socket raises it (BlockingIOError where it is full)."""
    if descriptor is None:
        connection.send(data)
    else:
        socket.send_fds(connection, [data], [descriptor])


def send_record(connection: socket.socket, record: Record, descriptor: int | None = None) -> None:
    """``record`` as one message; raises as ``encode_record`` and ``send_bytes`` do."""
    send_bytes(connection, encode_record(record), descriptor)


class Receiver:
    """Reads records from one connection into a buffer of its own. One thread at a time."""

    __slots__ = ("_buffer", "_buffers", "_connection")

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = memoryview(bytearray(MAX_RECORD_BYTES))
        self._buffers = (self._buffer,)

    def receive(self, *, wait: bool = True) -> tuple[Record, int | None]:
        """The next record and the descriptor that came with it, if any, now the caller's.

        Raises EOFError where the other end has closed, ProtocolError for anything malformed,
        OSError as the socket does: BlockingIOError where there is none, unless it shall ``wait``.
        """
        size, ancillary, flags, _ = self._connection.recvmsg_into(
            self._buffers, _ANCILLARY_BYTES, _WAITING if wait else _NOT_WAITING
        )
        descriptors = _descriptors(ancillary) if ancillary else []
        try:
            if not size:
                raise EOFError("the connection is closed")
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise ProtocolError(f"a message of more than {MAX_RECORD_BYTES} bytes")
            record = decode_record(self._buffer[:size])
            if len(descriptors) != isinstance(record, _WITH_DESCRIPTOR):
                raise ProtocolError(f"{type(record).__name__} with {len(descriptors)} descriptors")
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return record, descriptors[0] if descriptors else None


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    received = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
    return list(received)


def send_changes(connection: socket.socket, changes: Sequence[SlabChange]) -> None:
    """Announce ``changes`` and close their descriptors; raises as ``send_bytes`` does."""
    try:
        for record, descriptor in changes:
            send_record(connection, record, descriptor)
    finally:
        close_descriptors(changes)


def greet(
    connection: socket.socket, server: int = 0, settings: tuple[str, ...] | None = None
) -> Welcome:
    """Begin a connection to a worker; ``server``: the process number of a stub's tritonserver,
    ``settings`` as in ``Hello``.

    Raises what the worker refuses us for, ProtocolError where it runs as another user or answers
    anything else, OSError and EOFError as the socket does.
    """
    check_peer(connection)
    send_record(connection, Hello(PROTOCOL_VERSION, __version__, os.getpid(), server, settings))
    answer, _ = Receiver(connection).receive()
    if isinstance(answer, Refused):
        raise named_error(answer.code, answer.message)
    if not isinstance(answer, Welcome):
        kind = type(answer).__name__
        raise ProtocolError(f"expected Welcome, but the worker answers {kind} to a greeting")
    return answer
