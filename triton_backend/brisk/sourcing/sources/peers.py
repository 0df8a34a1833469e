"""Clients of other hosts' couriers: they read a peer's reports of a copy, and its bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from brisk.copies.manifest import MOST_MANIFEST_BYTES, ListedFile
from brisk.errors import ProtocolError
from brisk.sourcing.policies.choosing import LONGEST_CHAIN, PeerReport
from brisk.sourcing.policies.patience import pause_s
from brisk.sourcing.policies.stretches import Layout, Stretch, pack, unpack
from brisk.sourcing.sources.downloads import ArrivingPieces, Web
from brisk.sourcing.sources.failures import MissingError, SourceError
from brisk.sourcing.sources.registry import Pieces

ASKED_S = 0.2
"""The least interval of requests for a peer's report, and so the report's age while chunks keep
arriving there."""

HELD_S = 0.25
"""The time after which a peer answers even if it has nothing new."""

ANSWER_S = 0.6
IDENTITY_HEADER = "Brisk-Host"
_MOST_STATUS_BYTES = 1 << 22
_MOST_STRETCHES = 64
_MOST_TEXT = 256


class Listener(Protocol):
    """The interface of an object that wants reports of what peers have."""

    @property
    def layout(self) -> Layout: ...

    def hear(self, name: str, report: PeerReport | None, problem: str = "") -> None: ...

    async def wait_until_curious(self) -> None:
        """Wait until the receiver's copy misses some wanted chunk."""


class PeerHost:
    """Another host's courier, by its address."""

    def __init__(self, address: str, web: Web, identity: str, *, is_secure: bool) -> None:
        """Make a client of a peer. ``address``: host:port. ``identity``: this host's own."""
        self.address = address
        self.web = web
        self.identity = identity
        self.answers = True
        """Whether the peer answered the last request for a report; True before the first."""
        self.base = f"{'https' if is_secure else 'http'}://{address}/v1/copies"

    def copy_of(self, sha256: str) -> PeerCopy:
        return PeerCopy(self, sha256)


class PeerCopy:
    """A peer's copy of one model, as a source of bytes."""

    is_peer = True

    def __init__(self, peer: PeerHost, sha256: str) -> None:
        self.name = f"peer {peer.address}"
        self._peer = peer
        self._url = f"{peer.base}/{sha256}"
        self._count: int | None = None
        """The number of chunks in the peer's last report; None if the peer is to answer at
        once."""

    @property
    def answers(self) -> bool:
        """Whether the host answered the last request for a report."""
        return self._peer.answers

    async def manifest(self) -> bytes:
        """Return the manifest. Raises SourceError, MissingError if the peer has no such copy."""
        url = f"{self._url}/manifest"
        try:
            return await asyncio.wait_for(
                self._peer.web.get_small(url, MOST_MANIFEST_BYTES, follows=False), 5.0
            )
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise SourceError(f"{self.name} does not answer") from error

    @asynccontextmanager
    async def read(
        self, number: int, file: ListedFile, offset: int, size: int
    ) -> AsyncIterator[Pieces]:
        """Read bytes as ``ByteSource.read`` describes; they end early when the peer has received
        nothing new for a while."""
        url = f"{self._url}/files/{number}"
        headers = {IDENTITY_HEADER: self._peer.identity}
        async with self._peer.web.get_range(
            url, offset, size, file.size, headers, follows=False
        ) as answer:
            content = ArrivingPieces(answer.response)
            with contextlib.closing(content):
                yield Pieces(content, answer.offset, answer.is_ranged, content.expect)

    async def watch(self, listener: Listener) -> None:
        """Ask the peer for reports, again and again while ``listener`` is curious, and pass them
        on to it.

        Return if the peer is this host itself.
        """
        failures = 0
        while True:
            await listener.wait_until_curious()
            asked_s = time.monotonic()
            try:
                report = await asyncio.wait_for(self._ask(listener.layout), ANSWER_S + HELD_S)
            except MissingError:
                self._count, failures = 0, 0
                self._peer.answers = True
                listener.hear(self.name, None, f"{self.name} has no copy")
            except (SourceError, ProtocolError, asyncio.TimeoutError, TimeoutError) as error:
                failures += 1
                self._peer.answers = False
                problem = str(error) or f"{self.name} does not answer"
                listener.hear(self.name, None, problem)
                self._count = None
            else:
                failures = 0
                self._peer.answers = True
                if report.identity == self._peer.identity:
                    listener.hear(self.name, None, f"{self.name} is this host")
                    return
                listener.hear(self.name, report)
            pause = max(pause_s(failures), ASKED_S) - (time.monotonic() - asked_s)
            await asyncio.sleep(max(pause, 0.0))

    async def _ask(self, layout: Layout) -> PeerReport:
        url = self._url if self._count is None else f"{self._url}?since={self._count}"
        data = await self._peer.web.get_small(url, _MOST_STATUS_BYTES, follows=False)
        try:
            record = json.loads(data)
            self._count = _whole(record["count"])
            return read_report(record, layout)
        except (ValueError, KeyError, TypeError, RecursionError, AttributeError) as error:
            raise ProtocolError(f"{self.name} tells {data!r:.80}") from error


def write_report(report: PeerReport, layout: Layout, count: int) -> Mapping[str, Any]:
    """Return a report as JSON. ``count``: the chunks present, to pass as ``?since=`` for the next
    report."""
    return {
        "identity": report.identity,
        "count": count,
        "here": pack(report.here, layout.count),
        "fetching": report.is_fetching,
        "next": [list(stretch) for stretch in report.next],
        "bytes_per_s": report.bytes_per_s,
        "receivers": report.receivers,
        "path": list(report.path),
    }


def read_report(record: Mapping[str, Any], layout: Layout) -> PeerReport:
    """Return the report that ``write_report`` wrote.

    Raises ValueError, TypeError, KeyError, ProtocolError if the record is no report.
    """
    stretches = [Stretch(_whole(start), _whole(end)) for start, end in record["next"]]
    if len(stretches) > _MOST_STRETCHES:
        raise ValueError(f"{len(stretches)} stretches")
    if any(not start < end <= layout.count for start, end in stretches):
        raise ValueError("stretches of chunks that are not there")
    identity, path = record["identity"], tuple(record["path"])
    if len(path) > LONGEST_CHAIN:
        raise ValueError(f"a chain of {len(path)} hosts")
    for text in (identity, *path):
        if type(text) is not str or len(text) > _MOST_TEXT:
            raise ValueError("no name of a host")
    rate = record["bytes_per_s"]
    if type(rate) not in (int, float) or not 0 <= rate < 1e15:
        raise ValueError(f"{rate!r:.40} bytes a second")
    return PeerReport(
        identity=identity,
        here=unpack(record["here"], layout.count),
        is_fetching=record["fetching"] is True,
        next=tuple(stretches),
        bytes_per_s=float(rate),
        receivers=_whole(record["receivers"]),
        path=path,
    )


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r:.40} is no number")
    return value
