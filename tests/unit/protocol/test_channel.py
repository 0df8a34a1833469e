"""One record per message, with a descriptor beside it or not; no descriptor is ever leaked."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from brisk.errors import ProtocolError
from brisk.protocol.channel import (
    MAX_RECORD_BYTES,
    Receiver,
    check_peer,
    encode_record,
    send_bytes,
    send_changes,
    send_record,
)
from brisk.protocol.records import AttachSlab, Cancel, Log
from brisk.protocol.shared_memory import Arena
from support.open_files import nothing_left_open


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends; afterwards no descriptor may be left that was not there before."""
    with nothing_left_open():
        first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (first, second):
            end.settimeout(5.0)
        yield first, second
        first.close()
        second.close()


Pair = tuple[socket.socket, socket.socket]


def test_records_keep_their_order_and_their_borders(pair: Pair) -> None:
    for number in range(20):
        send_record(pair[0], Cancel(number))
    receiver = Receiver(pair[1])
    assert [receiver.receive() for _ in range(20)] == [(Cancel(n), None) for n in range(20)]


def test_the_longest_record_fits_a_message(pair: Pair) -> None:
    longest = Log("info", "x" * (MAX_RECORD_BYTES - len(encode_record(Log("info", "")))))
    assert len(encode_record(longest)) == MAX_RECORD_BYTES
    send_record(pair[0], longest)
    assert Receiver(pair[1]).receive() == (longest, None)


def test_a_receiver_takes_memory_for_what_it_has_received_alone(pair: Pair) -> None:
    """A worker has one for each of its stubs."""
    count, before = 100, resident_bytes()
    receivers = [Receiver(pair[1]) for _ in range(count)]
    for receiver in receivers:
        send_record(pair[0], Cancel(1))
        assert receiver.receive() == (Cancel(1), None)
    assert resident_bytes() - before < count * MAX_RECORD_BYTES / 4


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_a_slab_s_memory_comes_with_its_record(pair: Pair) -> None:
    arena = Arena()
    arena.memory(arena.allocate(3))[:] = b"abc"
    send_changes(pair[0], arena.take_changes())
    record, received = Receiver(pair[1]).receive()
    assert isinstance(record, AttachSlab)
    assert received is not None
    assert os.pread(received, 3, 0) == b"abc"
    assert fcntl.fcntl(received, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    os.close(received)
    arena.close()


def test_an_end_that_has_closed_is_the_end(pair: Pair) -> None:
    pair[0].close()
    with pytest.raises(EOFError):
        Receiver(pair[1]).receive()


def test_nothing_to_read_is_not_the_end(pair: Pair) -> None:
    pair[1].setblocking(False)
    with pytest.raises(BlockingIOError):
        Receiver(pair[1]).receive()


def test_an_overlong_message_is_refused_whole(pair: Pair) -> None:
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MAX_RECORD_BYTES)
    pair[0].send(b"[" * (MAX_RECORD_BYTES + 1))
    send_record(pair[0], Cancel(1))
    with pytest.raises(ProtocolError, match=f"more than {MAX_RECORD_BYTES} bytes"):
        Receiver(pair[1]).receive()
    assert Receiver(pair[1]).receive() == (Cancel(1), None)


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (encode_record(AttachSlab(1, 4096)), 0),
        (encode_record(AttachSlab(1, 4096)), 2),
        (encode_record(AttachSlab(1, 4096)), 5),
        (encode_record(Cancel(1)), 1),
        (b"garbage", 1),
        (b"x" * (MAX_RECORD_BYTES + 1), 1),
    ],
    ids=["none", "two", "more than fit", "where none belongs", "with garbage", "with too much"],
)
def test_descriptors_that_do_not_belong_are_closed(pair: Pair, data: bytes, count: int) -> None:
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MAX_RECORD_BYTES)
    null = os.open("/dev/null", os.O_RDONLY)
    socket.send_fds(pair[0], [data], [null] * count)
    os.close(null)
    with pytest.raises(ProtocolError):
        Receiver(pair[1]).receive()


def test_sending_to_an_end_that_has_closed_is_the_socket_s_error(pair: Pair) -> None:
    pair[1].close()
    with pytest.raises(ConnectionError):
        send_bytes(pair[0], b"x", None)


def test_a_peer_of_our_own_user_is_accepted(pair: Pair) -> None:
    assert check_peer(pair[0]) == os.getpid()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_a_peer_of_another_user_is_refused() -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("\0brisk-test-of-another-user-" + str(os.getpid()))
    listener.listen()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
                other.connect(listener.getsockname())
                other.settimeout(10.0)
                status = 0 if other.recv(1) == b"" else 2
        finally:
            os._exit(status)
    connection, _ = listener.accept()
    with pytest.raises(ProtocolError, match=f"process {child} of user 65534 is not user 0"):
        check_peer(connection)
    connection.close()
    listener.close()
    assert os.waitpid(child, 0)[1] == 0
