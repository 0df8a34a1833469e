"""Programs that send and receive over plain TCP, for ``brisk_bench.fleet``'s links and transfers.

They are run in hosts by the path of this file, with the name of a function below and its
arguments; they write and read lines of JSON. All hosts share one monotonic clock, whose
nanoseconds they report. Standard library only, and nothing of this package.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_BLOCK_BYTES = 1 << 20
_PATIENCE_S = 60.0
"""The longest silence of a peer."""


def count(*_: str) -> None:
    """Receive on a port; report how many bytes came between two moments, and in which time.

    The window is read as ``begin_ns`` and ``end_ns``; it is measured between the first bytes that
    come at or after each of them.
    """
    with _listening() as server:
        window = _hear()
        connection, _peer = server.accept()
    block = bytearray(_BLOCK_BYTES)
    received = since = begin_ns = now_ns = 0
    with connection:
        connection.settimeout(_PATIENCE_S)
        while now_ns < window["end_ns"]:
            read = connection.recv_into(block)
            if not read:
                sys.exit(f"the sender ended after {received} bytes")
            now_ns = time.monotonic_ns()
            received += read
            if not begin_ns and now_ns >= window["begin_ns"]:
                begin_ns, since = now_ns, received
    _say(bytes=received - since, seconds=(now_ns - begin_ns) / 1e9)


def flood(address: str, port: str) -> None:
    """Send to a port until the receiver closes."""
    block = bytes(_BLOCK_BYTES // 4)
    with socket.create_connection((address, int(port)), _PATIENCE_S) as connection:
        try:
            while True:
                connection.sendall(block)
        except (ConnectionResetError, BrokenPipeError):
            return


def receive(file: str, size: str) -> None:
    """Receive ``size`` bytes on a port into a new file; report when the last was written."""
    expected = int(size)
    block = memoryview(bytearray(_BLOCK_BYTES))
    with _listening() as server:
        connection, _peer = server.accept()
    start_s = _processor_s()
    with connection, Path(file).open("xb", buffering=0) as target:
        connection.settimeout(_PATIENCE_S)
        while expected:
            read = connection.recv_into(block, min(expected, _BLOCK_BYTES))
            if not read:
                sys.exit(f"the sender ended {expected} bytes too early")
            target.write(block[:read])
            expected -= read
        _say(finished_ns=time.monotonic_ns(), processor_s=_processor_s() - start_s)


def send(file: str, *peers: str) -> None:
    """Connect to ``address:port`` of each peer, wait for a line, send the file to all at once."""
    connections = []
    for peer in peers:
        address, _, port = peer.partition(":")
        connections.append(socket.create_connection((address, int(port)), _PATIENCE_S))
    with Path(file).open("rb") as source:
        _say(connected=len(connections))
        _hear()
        start_s = _processor_s()
        threads = [
            threading.Thread(target=_send_file, args=(connection, source.fileno()))
            for connection in connections
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    _say(finished_ns=time.monotonic_ns(), processor_s=_processor_s() - start_s)


def _send_file(connection: socket.socket, source: int) -> None:
    """Send all of the file; the offset is this thread's own, the open file is shared."""
    size, offset = os.fstat(source).st_size, 0
    with connection:
        connection.setblocking(True)
        while offset < size:
            sent = os.sendfile(connection.fileno(), source, offset, size - offset)
            if not sent:
                raise EOFError(f"the file was cut short at {offset} of {size} bytes")
            offset += sent


def _listening() -> socket.socket:
    """Return a socket that listens on a free port, which is reported."""
    server = socket.create_server(("0.0.0.0", 0))
    server.settimeout(_PATIENCE_S)
    _say(port=server.getsockname()[1])
    return server


def _processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _say(**message: object) -> None:
    print(json.dumps(message), flush=True)


def _hear() -> dict[str, Any]:
    line = sys.stdin.readline()
    return dict(json.loads(line)) if line else sys.exit("nobody is there")


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]]
    programs = {"count": count, "flood": flood, "receive": receive, "send": send}
    programs[sys.argv[1]](*sys.argv[2:])
