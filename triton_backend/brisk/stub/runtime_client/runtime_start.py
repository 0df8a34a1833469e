"""Connections to the runtime of a device, which is started where there is none."""

from __future__ import annotations

import os
import socket
import struct
import time
from typing import TYPE_CHECKING

from brisk import __version__
from brisk.errors import (
    ProtocolError,
    UnavailableError,
    named_error,
)
from brisk.protocol.channel import Receiver, check_peer, send_record
from brisk.protocol.host.runtime_paths import RuntimePaths
from brisk.protocol.host.stub_process import server_of_stub
from brisk.protocol.records import PROTOCOL_VERSION, Hello, Refused, Welcome
from brisk.protocol.role import Role
from brisk.stub.runtime_client.runtime_process import note_answered, start_if_absent

if TYPE_CHECKING:  # a load that finds its runtime does without
    import subprocess

CONNECT_TIMEOUT_S = 5.0
START_TIMEOUT_S = 120.0
"""How long a runtime may take to its first word: torch from a cold disk can take long."""

_SEND_TIMEOUT = struct.pack("ll", 60, 0)
"""Seconds and microseconds: a foreground worker that reads nothing for so long is taken for
dead. A background worker may have to wait longer than that for a processor."""

_RETRY_PAUSE_S = 0.02


def open_connection(
    place: RuntimePaths, role: Role, timeout_s: float = START_TIMEOUT_S
) -> socket.socket:
    """A greeted, blocking connection to a worker of ``place``, started if need be.

    Raises UnavailableError where none answers in time, ProtocolError where it is another
    version of Brisk, InvalidConfigurationError where it or its device cannot be used.
    """
    deadline_s = time.monotonic() + timeout_s
    starter: subprocess.Popen[bytes] | None = None
    while time.monotonic() < deadline_s:
        try:
            connection = place.connect(CONNECT_TIMEOUT_S, role)
        except OSError:
            starter = start_if_absent(place, starter)
            time.sleep(_RETRY_PAUSE_S)
            continue
        try:
            greeted = _greet(connection, role, deadline_s)
            note_answered(place)
            return greeted
        except (OSError, EOFError):  # it ended as we came: the next one will do
            connection.close()
            time.sleep(_RETRY_PAUSE_S)
        except BaseException:
            connection.close()
            raise
    raise UnavailableError(
        f"the runtime of {place.device} did not answer at {place.socket_path(role)} within "
        f"{timeout_s:.0f} s; its own words are in the server's log"
    )


def _greet(connection: socket.socket, role: Role, deadline_s: float) -> socket.socket:
    check_peer(connection)
    connection.settimeout(max(0.1, deadline_s - time.monotonic()))
    hello = Hello(PROTOCOL_VERSION, __version__, os.getpid(), server_of_stub())
    send_record(connection, hello)
    answer, _ = Receiver(connection).receive()
    if isinstance(answer, Refused):
        raise named_error(answer.code, answer.message)
    if not isinstance(answer, Welcome):
        raise ProtocolError(f"expected Welcome, got {type(answer).__name__}")
    connection.settimeout(None)
    if role is Role.FOREGROUND:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
    return connection
