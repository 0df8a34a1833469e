"""When a frontend announces a request: to a worker that has heard nothing for a while."""

from __future__ import annotations

import socket
import time

import pytest

from brisk.protocol.channel import Receiver
from brisk.protocol.records import Announce, Record, Release
from brisk.protocol.shared_memory.arena import Arena
from brisk.stub.runtime_client.sender import QUIET_NS, DirectSender


def received(connection: socket.socket) -> list[Record]:
    found, receiver = [], Receiver(connection)
    while True:
        try:
            found.append(receiver.receive(wait=False)[0])
        except BlockingIOError:
            return found


def test_only_after_a_silence_is_a_request_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = [10**12]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns[0])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        line = DirectSender(Arena(), "foreground")
        line.announce()  # there is no worker yet
        line.connect(ours)
        line.announce()
        line.send(Release(1))
        line.announce()
        now_ns[0] += QUIET_NS + 1
        line.announce()
        assert received(theirs) == [Announce(), Release(1), Announce()]
