"""The worker's sockets, with no worker: full sockets, slow readers, limits, departures."""

from __future__ import annotations

import itertools
import os
import resource
import socket
import time
from collections.abc import Iterator

import pytest

from brisk.protocol.channel import Receiver, send_record
from brisk.protocol.records import AttachSlab, Cancel, Log, Record
from brisk.protocol.runtime_paths import new_socket
from brisk.runtime.peers import connections as module
from brisk.runtime.peers.connections import Arrival, Connections, Departure, Peer
from support.open_files import nothing_left_open
from support.waiting import TIMED

pytestmark = pytest.mark.timing

ADDRESS = f"\0brisk-test-{os.getpid()}"

LARGE = Log("info", "x" * 150_000)
"""A socket's buffer takes two such records."""


@pytest.fixture
def transport() -> Iterator[Connections]:
    with nothing_left_open():
        listener = new_socket()
        listener.bind(ADDRESS)
        listener.listen(64)
        made = Connections([listener])
        yield made
        made.close()
        listener.close()


def connect() -> socket.socket:
    connection = new_socket()
    connection.settimeout(10.0)
    connection.connect(ADDRESS)
    return connection


def only_peer(transport: Connections) -> Peer:
    assert list(transport.poll(1.0)) == []
    (peer,) = transport.peers.values()
    return peer


def events(transport: Connections, count: int) -> list[Arrival | Departure]:
    found: list[Arrival | Departure] = []
    deadline_s = time.monotonic() + 10.0
    while len(found) < count:
        assert time.monotonic() < deadline_s, f"{found} only"
        found.extend(transport.poll(0.1))
    return found


def test_a_peer_that_has_gone_is_reported_before_what_a_later_one_sends(
    transport: Connections,
) -> None:
    """Else a server with other settings is refused for the sake of one that has ended."""
    earlier = connect()
    gone = only_peer(transport)
    earlier.close()
    with connect() as later:
        send_record(later, Cancel(1))
        first, second = transport.poll(1.0)
    assert first == Departure(gone, None)
    assert isinstance(second, Arrival)
    assert second.record == Cancel(1)


def test_records_arrive_with_their_peer_and_the_end_as_a_departure(transport: Connections) -> None:
    connection = connect()
    peer = only_peer(transport)
    assert peer.pid == os.getpid()
    send_record(connection, Cancel(1))
    send_record(connection, Cancel(2))
    connection.close()
    arrived = events(transport, 3)
    assert arrived == [
        Arrival(peer, Cancel(1), None),
        Arrival(peer, Cancel(2), None),
        Departure(peer, None),
    ]
    assert not transport.peers


@pytest.mark.parametrize("leaves_unread", [False, True])
def test_what_a_peer_said_before_it_closed_arrives_whatever_it_is_sent(
    transport: Connections, leaves_unread: bool
) -> None:
    """A stub asks, takes back what it has shown, and closes, while the worker computes."""
    connection = connect()
    peer = only_peer(transport)
    if leaves_unread:
        transport.send(peer, Log("info", "to be read by nobody"))
    else:
        transport.send(peer, Log("info", "x"))
        assert Receiver(connection).receive()[0] == Log("info", "x")
    send_record(connection, Cancel(1))
    send_record(connection, Cancel(2))
    connection.close()
    transport.send(peer, Log("info", "too late"))
    arrived = events(transport, 3)
    assert arrived == [
        Arrival(peer, Cancel(1), None),
        Arrival(peer, Cancel(2), None),
        Departure(peer, None),
    ]
    assert not peer.is_open


def test_garbage_is_a_departure_with_its_reason(transport: Connections) -> None:
    connection = connect()
    peer = only_peer(transport)
    connection.send(b"garbage")
    (departure,) = events(transport, 1)
    assert isinstance(departure, Departure)
    assert departure.peer is peer
    assert "not a record" in (departure.reason or "")
    connection.close()


def test_one_busy_peer_does_not_keep_another_waiting(transport: Connections) -> None:
    first, second = connect(), connect()
    list(transport.poll(1.0))
    for number in range(module.RECORDS_PER_TURN + 10):
        send_record(first, Cancel(number))
    send_record(second, Cancel(1000))
    turn = list(transport.poll(1.0))
    assert sum(isinstance(event, Arrival) for event in turn) == module.RECORDS_PER_TURN + 1
    first.close()
    second.close()


@pytest.mark.parametrize("count", [3, 4, 8])
def test_a_slow_reader_gets_everything_in_order_and_then_nothing_is_left_to_do(
    transport: Connections, count: int
) -> None:
    connection = connect()
    peer = only_peer(transport)
    expected: list[Record] = []
    for number in range(count):
        for record in (LARGE, Cancel(number)) if number % 2 else (LARGE,):
            transport.send(peer, record)
            expected.append(record)
    assert peer.outbox, "the socket's buffer was meant to be full"
    receiver = Receiver(connection)
    received = []
    for _ in expected:
        received.append(receiver.receive()[0])
        list(transport.poll(0))
    assert received == expected
    started_s = time.monotonic()
    assert list(transport.poll(0.2)) == []
    assert time.monotonic() - started_s > 0.15, "poll returned at once: it would spin"
    connection.close()


def test_exactly_one_record_too_many_leaves_no_spinning_behind(transport: Connections) -> None:
    connection = connect()
    peer = only_peer(transport)
    receiver = Receiver(connection)
    sent = 0
    while not peer.outbox:
        transport.send(peer, LARGE)
        sent += 1
    assert len(peer.outbox) == 1
    for _ in range(sent):
        receiver.receive()
        list(transport.poll(0))
    assert not peer.outbox
    started_s = time.monotonic()
    assert list(transport.poll(0.2)) == []
    assert time.monotonic() - started_s > 0.15, "poll returned at once: it would spin"
    connection.close()


def test_a_slab_given_up_before_the_peer_reads_of_it_can_still_be_sent(
    transport: Connections,
) -> None:
    connection = connect()
    peer = only_peer(transport)
    transport.send(peer, LARGE)
    transport.send(peer, LARGE)
    regions = [peer.arena.allocate(1 << 24) for _ in range(2)]
    transport.send(peer, LARGE)
    for region in regions:
        peer.arena.free(region)
    transport.send(peer, Cancel(1))
    receiver = Receiver(connection)
    slabs = 0
    for _ in range(7):
        record, descriptor = receiver.receive()
        list(transport.poll(0))
        slabs += isinstance(record, AttachSlab)
        if descriptor is not None:
            os.close(descriptor)
    assert slabs == 2
    peer.arena.close()
    connection.close()


def test_what_a_dropped_peer_never_read_is_given_back(transport: Connections) -> None:
    connection = connect()
    peer = only_peer(transport)
    transport.send(peer, LARGE)
    transport.send(peer, LARGE)
    peer.arena.allocate(100)
    transport.send(peer, LARGE)
    transport.drop(peer, "enough")
    transport.drop(peer, "twice")
    transport.send(peer, Cancel(1))
    assert list(transport.poll(10.0)) == [Departure(peer, "enough")]
    peer.arena.close()
    connection.close()


def test_a_peer_that_never_reads_is_given_up(
    transport: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_OUTBOX_RECORDS", 10)
    connection = connect()
    peer = only_peer(transport)
    for _ in range(14):
        transport.send(peer, LARGE)
    assert list(transport.poll(0)) == [Departure(peer, "10 records left unread")]
    connection.close()


def test_waking_ends_a_wait_from_any_thread_once(transport: Connections) -> None:
    transport.wake()
    transport.wake()
    started_s = time.monotonic()
    assert list(transport.poll(10.0)) == []
    with TIMED:
        assert time.monotonic() - started_s < 1.0
    assert list(transport.poll(0.05)) == []


def test_connections_beyond_the_limit_of_open_files_wait_for_others_to_go(
    transport: Connections, caplog: pytest.LogCaptureFixture
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    crowd = [connect() for _ in range(6)]
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    free = (number for number in itertools.count() if number not in used)
    resource.setrlimit(resource.RLIMIT_NOFILE, (list(itertools.islice(free, 4))[-1], limits[1]))
    try:
        assert list(transport.poll(1.0)) == []
        taken = len(transport.peers)
        assert 0 < taken < 6
        started_s = time.monotonic()
        assert list(transport.poll(0.2)) == []
        assert time.monotonic() - started_s > 0.15, "poll returned at once: it would spin"
        for _ in range(100):  # as a worker asks between two steps
            assert list(transport.poll(0)) == []
        assert caplog.text.count("cannot be accepted now") == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    deadline_s = time.monotonic() + 5.0
    while len(transport.peers) < 6 and time.monotonic() < deadline_s:
        list(transport.poll(0.1))
    assert len(transport.peers) == 6
    for connection in crowd:
        connection.close()


def test_a_server_is_looked_for_once_however_many_stubs_it_has(
    transport: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look reads a file, and requests wait meanwhile."""
    looked: list[int] = []
    ended: list[int] = []

    def has_ended(process: int, birth: int | None) -> bool:
        looked.append(process)
        return process == GONE

    monkeypatch.setattr(module, "has_ended", has_ended)
    monkeypatch.setattr(module, "end_orphan", ended.append)
    clients = [connect() for _ in range(6)]
    assert list(transport.poll(1.0)) == []
    peers = list(transport.peers.values())
    for peer, parent in zip(peers, (THERE, THERE, THERE, GONE, GONE, 0), strict=True):
        peer.parent, peer.is_welcome = parent, True
    for now_ns in (0, module.ORPHAN_GRACE_NS):
        module.retire_orphans(transport, now_ns)
        assert sorted(looked) == [THERE, GONE]
        looked.clear()
    assert len(ended) == 2
    assert [peer.is_open for peer in peers] == [True, True, True, False, False, True]
    for client in clients:
        client.close()


THERE, GONE = 1, 2
"""The numbers of two servers."""
