"""One record per message over a SEQPACKET Unix socket, a slab's descriptor beside it."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable

from brisk.errors import ProtocolError
from brisk.wire.arena import SlabChange
from brisk.wire.codec import MAX_RECORD_BYTES, decode_record, encode_record
from brisk.wire.records import AttachSlab, DetachSlab, Record

_CREDENTIALS = struct.Struct("3i")


def new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


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


def receive_record(connection: socket.socket) -> tuple[Record, int | None]:
    """The next record and the descriptor that came with an AttachSlab, now the caller's.

    Raises EOFError where the other end has closed, ProtocolError for anything malformed,
    OSError as the socket does.
    """
    data, descriptors, flags, _ = socket.recv_fds(connection, MAX_RECORD_BYTES, 2)
    try:
        if not data:
            raise EOFError("the connection is closed")
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ProtocolError(f"a message of more than {MAX_RECORD_BYTES} bytes")
        record = decode_record(data)
        if len(descriptors) != (1 if isinstance(record, AttachSlab) else 0):
            raise ProtocolError(f"{type(record).__name__} with {len(descriptors)} descriptors")
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return record, descriptors[0] if descriptors else None


def slab_records(changes: Iterable[SlabChange]) -> Iterable[tuple[Record, int | None]]:
    """The records, with descriptors, that announce ``changes`` to the peer."""
    for change in changes:
        if change.descriptor is None:
            yield DetachSlab(change.slab), None
        else:
            yield AttachSlab(change.slab, change.size), change.descriptor
