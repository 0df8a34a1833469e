"""The worker's sockets: it accepts, reads and writes without ever blocking on a peer."""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from brisk.errors import ProtocolError
from brisk.protocol.channel import Receiver, check_peer, encode_record, send_bytes
from brisk.protocol.records import Record, Region
from brisk.protocol.shared_memory import Arena, ArenaView
from brisk.protocol.stub_process import end_orphan, has_ended
from brisk.runtime.log import LOGGER
from brisk.runtime.peers.tensors import InputViews
from brisk.scheduling.job import Job

SPIN_NS = 100_000

_MOST_GAP_NS = 4 * SPIN_NS
"""The longest silence that is counted: a longer one counts as this one, so that a handful of quick
records end it."""

MAX_OUTBOX_RECORDS = 65536
"""The most records that a peer may leave unread before its connection is dropped."""

RECORDS_PER_TURN = 32
"""The most records read from a peer in one ``poll``; peers are read alternately, a record each."""

_READABLE = select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR

Found = TypeVar("Found")


class Anticipation:
    """Busy-polls for records that are about to come; keeps a moving average of the waits' lengths.
    Used by one thread.

    Waking a process that sleeps takes 30 to 50 microseconds on a virtual machine, once for each
    record of a client that sends small requests back to back. If the last records came within
    SPIN_NS of the wait for them, the next one is awaited by busy polling, that long at most. Other
    traffic is never polled for.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._gap_ns = _MOST_GAP_NS

    def wait(self, look: Callable[[float], list[Found]], timeout_s: float) -> list[Found]:
        """Return what ``look(timeout_s)`` finds; first busy-poll ``look(0)`` if that is due."""
        begun_ns = now_ns = self._clock_ns()
        events: list[Found] = []
        until_ns = begun_ns + SPIN_NS if self._gap_ns < SPIN_NS else begun_ns
        while not events and now_ns < until_ns:
            events = look(0)
            now_ns = self._clock_ns()
        events = events or look(timeout_s)
        gap_ns = min(self._clock_ns() - begun_ns, _MOST_GAP_NS)
        self._gap_ns = (3 * self._gap_ns + gap_ns) // 4
        return events


@dataclass(slots=True, eq=False)
class Peer:
    """A connected stub and the memory shared with it.

    ``pid``: as the kernel attests it. ``parent`` and ``server_birth`` together name its
    tritonserver; 0 and None if that is unknown. ``jobs``: its requests in flight, and ``held``:
    outputs that it has not read, both by its own numbers.
    """

    number: int
    connection: socket.socket
    pid: int
    receiver: Receiver = field(init=False)
    view: ArenaView = field(default_factory=ArenaView)
    inputs: InputViews = field(init=False)
    arena: Arena = field(default_factory=Arena)
    jobs: dict[int, Job] = field(default_factory=dict)
    held: dict[int, Region] = field(default_factory=dict)
    outbox: deque[tuple[bytes, int | None]] = field(default_factory=deque)
    is_open: bool = True
    is_blocked: bool = False
    """Whether the socket is full, so that ``poll`` waits for room in it."""
    is_welcome: bool = False
    is_leaving: bool = False
    """Whether the peer has reported that its model is unloaded."""
    is_of_server: bool = False
    """Whether a server uses the runtime through it; False before its greeting, and for an
    observer."""
    parent: int = 0
    server_birth: int | None = None
    orphaned_ns: int | None = None
    connected_ns: int = field(default_factory=time.monotonic_ns)

    def __post_init__(self) -> None:
        self.receiver = Receiver(self.connection)
        self.inputs = InputViews(self.view)


class Arrival(NamedTuple):
    """A record that a peer has sent."""

    peer: Peer
    record: Record
    descriptor: int | None
    """The descriptor sent with the record; the receiver closes it."""


class Departure(NamedTuple):
    """The end of a peer's connection."""

    peer: Peer
    reason: str | None
    """The reason why the peer was dropped; None if it closed the connection."""


class Connections:
    """All peers of a worker. Used by one thread, except ``wake``."""

    def __init__(self, listeners: Sequence[socket.socket]) -> None:
        self._poll = select.epoll()
        self._listeners = {listener.fileno(): listener for listener in listeners}
        for listener in listeners:
            listener.setblocking(False)
            self._poll.register(listener, select.EPOLLIN)
        self._alarm = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._alarm, select.EPOLLIN)
        self.peers: dict[int, Peer] = {}
        """The peers by their descriptors; others must not change this."""
        self._departures: deque[Departure] = deque()
        self._accepted = 0
        self._is_accepting = True
        self._is_short = False
        """Whether the last attempt to accept a connection has failed for want of files."""
        self._anticipation = Anticipation()

    def watch(self, descriptor: int) -> None:
        """Let every write to an eventfd, too, end a ``poll`` that waits; it is never read."""
        self._poll.register(descriptor, select.EPOLLIN | select.EPOLLET)

    def wake(self) -> None:
        """End a ``poll`` that waits. Any thread may call this."""
        os.eventfd_write(self._alarm, 1)

    def wait(self, timeout_s: float) -> None:
        """Wait until there is something for the next ``poll``. Any thread may call this."""
        if not self._departures:
            self._poll.poll(timeout_s)

    def poll(self, timeout_s: float) -> Iterator[Arrival | Departure]:
        """Yield what has come within ``timeout_s``; 0 does not wait."""
        if self._departures or not timeout_s:
            found = self._poll.poll(0)
        else:
            found = self._anticipation.wait(self._poll.poll, timeout_s)
        if not found and not self._is_accepting:
            self._listen(True)
        for _ in range(RECORDS_PER_TURN):
            for descriptor, events in found:
                if (peer := self.peers.get(descriptor)) is not None:
                    if events & select.EPOLLOUT:
                        self._flush(peer)
                    if events & _READABLE and (arrival := self._read(peer)) is not None:
                        yield arrival
                    if self._departures:  # whoever comes next finds the peer gone
                        yield from self._depart()
                elif descriptor == self._alarm:
                    os.eventfd_read(self._alarm)
                elif descriptor in self._listeners:
                    self._accept(self._listeners[descriptor])
            # Polling again costs less than a read that finds nothing and raises.
            if not found or not (found := self._poll.poll(0)):
                break
        yield from self._depart()

    def _depart(self) -> Iterator[Departure]:
        """Yield departures. Each connection is closed once its departure has been handled: if the
        peer's process lives on, it sees only then that the connection has ended."""
        while self._departures:
            departure = self._departures.popleft()
            try:
                yield departure
            finally:
                departure.peer.connection.close()
                if not self._is_accepting:
                    self._listen(True)

    def send(self, peer: Peer, record: Record, descriptor: int | None = None) -> None:
        """Send now or as soon as the peer reads; slabs made since are announced first.

        ``descriptor``: sent with the record, and closed here.
        """
        if not peer.is_open:
            if descriptor is not None:
                os.close(descriptor)
            return
        try:
            changes = peer.arena.take_changes()
        except OSError as error:
            if descriptor is not None:
                os.close(descriptor)
            self.drop(peer, f"no descriptor for its answers: {error}")
            return
        for change, slab in changes:
            peer.outbox.append((encode_record(change), slab))
        peer.outbox.append((encode_record(record), descriptor))
        self._flush(peer)

    def drop(self, peer: Peer, reason: str | None) -> None:
        """End the connection; the next ``poll`` reports the departure, and closes it."""
        if not peer.is_open:
            return
        peer.is_open = False
        del self.peers[peer.connection.fileno()]
        self._poll.unregister(peer.connection)
        _clear(peer)
        self._departures.append(Departure(peer, reason))

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:  # the peer did not wait
                continue
            except OSError as error:  # no more files: other peers wait until there are some
                if not self._is_short:  # it is tried again every other turn
                    LOGGER.warning(f"a connection cannot be accepted now: {error}")
                self._is_short = True
                self._listen(False)
                return
            self._is_short = False
            try:
                pid = check_peer(connection)
            except ProtocolError:
                connection.close()
                continue
            connection.setblocking(False)
            self._accepted += 1
            self.peers[connection.fileno()] = Peer(self._accepted, connection, pid)
            self._poll.register(connection, select.EPOLLIN)

    def _listen(self, accepting: bool) -> None:
        self._is_accepting = accepting
        for descriptor in self._listeners:
            self._poll.modify(descriptor, select.EPOLLIN if accepting else 0)

    def _read(self, peer: Peer) -> Arrival | None:
        """Return a record, if there is one. Drop a peer that cannot be read."""
        if not peer.is_open:
            return None
        try:
            record, descriptor = _receive(peer)
        except BlockingIOError:
            return None
        except (EOFError, ConnectionError):
            self.drop(peer, None)
            return None
        except (ProtocolError, OSError) as error:
            self.drop(peer, str(error))
            return None
        return Arrival(peer, record, descriptor)

    def _flush(self, peer: Peer) -> None:
        while peer.outbox:
            data, descriptor = peer.outbox[0]
            try:
                send_bytes(peer.connection, data, descriptor)
            except BlockingIOError:
                if len(peer.outbox) > MAX_OUTBOX_RECORDS:
                    self.drop(peer, f"{MAX_OUTBOX_RECORDS} records left unread")
                elif not peer.is_blocked:
                    peer.is_blocked = True
                    self._poll.modify(peer.connection, select.EPOLLIN | select.EPOLLOUT)
                return
            except ConnectionError:  # what the peer sent before it closed is still to be read
                _clear(peer)
                return
            except OSError as error:
                self.drop(peer, str(error))
                return
            peer.outbox.popleft()
            if descriptor is not None:
                os.close(descriptor)
        if peer.is_blocked:
            peer.is_blocked = False
            self._poll.modify(peer.connection, select.EPOLLIN)

    def close(self) -> None:
        for peer in list(self.peers.values()):
            self.drop(peer, None)
        for departure in self._departures:
            departure.peer.connection.close()
        self._poll.close()
        os.close(self._alarm)


# Stubs that outlive their server, and peers that never send a Hello.

ORPHAN_GRACE_NS = 3_000_000_000
"""The time for which a stub may outlive its server before the worker ends it."""

GREETING_TIMEOUT_NS = 10_000_000_000
"""The time for which a peer may be connected without a Hello."""


def retire_orphans(connections: Connections, now_ns: int) -> None:
    """End stubs of dead servers, and drop peers without a Hello; reads a file for each server."""
    ended: dict[tuple[int, int | None], bool] = {}
    for peer in list(connections.peers.values()):
        server = peer.parent, peer.server_birth
        if server not in ended:
            ended[server] = peer.parent > 0 and has_ended(*server)
        if not ended[server]:
            peer.orphaned_ns = None
        elif peer.orphaned_ns is None:
            peer.orphaned_ns = now_ns
        elif now_ns - peer.orphaned_ns >= ORPHAN_GRACE_NS:
            end_orphan(peer.pid)
            connections.drop(peer, "its server has died")
        if not peer.is_welcome and now_ns - peer.connected_ns >= GREETING_TIMEOUT_NS:
            connections.drop(peer, "it has not said who it is")


def _receive(peer: Peer) -> tuple[Record, int | None]:
    """Receive one record; raises as ``Receiver.receive``. A peer that closed with unread records
    causes one error before the records that it has sent can be read, which is skipped."""
    try:
        return peer.receiver.receive()
    except ConnectionResetError:
        return peer.receiver.receive()


def _clear(peer: Peer) -> None:
    """Drop the records that wait to be sent."""
    for _, descriptor in peer.outbox:
        if descriptor is not None:
            os.close(descriptor)
    peer.outbox.clear()
