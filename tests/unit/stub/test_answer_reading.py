"""Reading records in the thread that awaits them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from brisk.errors import ProtocolError
from brisk.protocol.channel import send_bytes, send_record
from brisk.protocol.records import Cancel, Record
from brisk.stub.runtime_client.transport import Reader

LONG_NS = 20_000_000_000
SHORT_NS = 1_000_000


class Desk:
    """Takes records, and notes in which thread."""

    def __init__(self) -> None:
        self.taken: list[tuple[Record, int]] = []
        self.broken_off = 0

    def take(self, record: Record, descriptor: int | None) -> None:
        if record == Cancel(999):
            raise ProtocolError("not this one")
        self.taken.append((record, threading.get_ident()))

    def break_off(self) -> None:
        self.broken_off += 1


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def reader_of(desk: Desk, connection: socket.socket) -> Reader:
    reader = Reader(desk.take, desk.break_off)
    reader.use(connection)
    return reader


def test_who_attends_reads_in_order_until_it_has_what_it_wants(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    desk = Desk()
    reader = reader_of(desk, ours)
    for number in range(3):
        send_record(theirs, Cancel(number))
    reader.attend(lambda: len(desk.taken) == 2, LONG_NS)
    assert desk.taken == [(Cancel(number), threading.get_ident()) for number in range(2)]
    reader.read()
    assert desk.taken[2][0] == Cancel(2)


def test_the_receiver_that_was_woken_in_vain_waits_for_the_next(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    desk = Desk()
    reader = reader_of(desk, ours)

    def receive() -> None:
        with contextlib.suppress(EOFError):
            while True:
                reader.read()

    receiver = threading.Thread(target=receive, daemon=True)
    receiver.start()
    for number in range(200):
        send_record(theirs, Cancel(number))
        reader.attend(lambda wanted=number: len(desk.taken) > wanted, SHORT_NS)
    theirs.close()
    receiver.join(30)
    assert [record for record, _ in desk.taken] == [Cancel(number) for number in range(200)]


@pytest.mark.parametrize(
    ("awake_ns", "asleep_ns"), [(LONG_NS, 0), (0, LONG_NS), (SHORT_NS, LONG_NS)]
)
def test_the_receiver_sleeps_on_while_another_thread_reads(
    ends: tuple[socket.socket, socket.socket], awake_ns: int, asleep_ns: int
) -> None:
    ours, theirs = ends
    desk = Desk()
    reader = reader_of(desk, ours)
    woken = []

    def receive() -> None:
        with contextlib.suppress(EOFError):
            while True:
                reader.read()
                woken.append(len(desk.taken))

    receiver = threading.Thread(target=receive, daemon=True)
    receiver.start()

    def send(number: int, attends: threading.Event) -> None:
        attends.wait(30)
        send_record(theirs, Cancel(number))

    for number in range(20):
        attends = threading.Event()  # of this round: what asks sets it again and again
        sender = threading.Thread(target=send, args=(number, attends))
        sender.start()

        def is_there(wanted: int = number, attends: threading.Event = attends) -> bool:
            attends.set()
            return len(desk.taken) > wanted

        assert reader.attend(is_there, awake_ns, asleep_ns)
        sender.join(30)
    assert len(desk.taken) == 20
    assert not woken
    send_record(theirs, Cancel(20))
    while len(desk.taken) < 21 or not woken:
        time.sleep(1e-3)
    theirs.close()
    receiver.join(30)
    assert not receiver.is_alive()


@pytest.mark.parametrize(("awake_ns", "asleep_ns"), [(SHORT_NS, 0), (0, SHORT_NS), (0, 0)])
def test_attending_ends_with_its_time(
    ends: tuple[socket.socket, socket.socket], awake_ns: int, asleep_ns: int
) -> None:
    desk = Desk()
    assert reader_of(desk, ends[0]).attend(lambda: False, awake_ns, asleep_ns)
    assert not desk.taken
    assert not desk.broken_off


def test_who_comes_while_another_reads_is_told(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    desk = Desk()
    reader = reader_of(desk, ends[0])
    inner = []

    def is_over() -> bool:  # asked by the thread that reads
        other = threading.Thread(target=lambda: inner.append(reader.attend(lambda: True, LONG_NS)))
        other.start()
        other.join(30)
        return True

    assert reader.attend(is_over, LONG_NS)
    assert inner == [False]


@pytest.mark.parametrize("what", ["refused", "malformed", "closed"])
def test_what_goes_wrong_while_attending_is_raised_to_the_receiver(
    ends: tuple[socket.socket, socket.socket], what: str
) -> None:
    ours, theirs = ends
    desk = Desk()
    reader = reader_of(desk, ours)
    if what == "refused":
        send_record(theirs, Cancel(999))
    elif what == "malformed":
        send_bytes(theirs, b"{", None)
    else:
        theirs.close()
    reader.attend(lambda: False, LONG_NS)
    assert desk.broken_off == 1
    ours.shutdown(socket.SHUT_RDWR)  # as breaking off does
    with pytest.raises(EOFError if what == "closed" else ProtocolError):
        reader.read()


def test_without_a_connection_nobody_waits() -> None:
    desk = Desk()
    reader = Reader(desk.take, desk.break_off)
    assert not reader.attend(lambda: False, LONG_NS)
    with pytest.raises(EOFError, match="no connection"):
        reader.read()
