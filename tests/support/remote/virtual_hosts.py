"""Hosts that fetch a model from each other in virtual time: the product's fetching, serving and
choosing, with links that have a rate, and no process, socket or second that passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from brisk.copies.local import path_in
from brisk.copies.manifest import ListedFile
from brisk.sourcing.fetching import Fetch
from brisk.sourcing.policies.choosing import PeerReport
from brisk.sourcing.serving import PULLS_S, arriving_bytes
from brisk.sourcing.sources.failures import SourceError
from brisk.sourcing.sources.peers import ANSWER_S, ASKED_S, HELD_S
from brisk.sourcing.sources.registry import ByteSource, Pieces
from brisk.sourcing.supply import Supply
from support.remote.published import Published, chunk_of, new_copy

PIECE_BYTES = 1 << 14


class AtOnce(Executor):
    """An executor that runs what it is given at once."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except OSError as error:
            future.set_exception(error)
        return future


class Link:
    """One direction of a host's link."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.free_s = 0.0
        self.sent_bytes = 0


async def carry(data: bytes, *links: Link) -> None:
    """Send data over all of these links at once, behind what is on them."""
    loop = asyncio.get_running_loop()
    begin_s = max(loop.time(), *(link.free_s for link in links))
    for link in links:
        link.free_s = begin_s + len(data) / link.bytes_per_s
        link.sent_bytes += len(data)
    await asyncio.sleep(max(link.free_s for link in links) - loop.time())


class VirtualRegistry:
    """A registry of what is published, behind one uplink."""

    is_peer = False

    def __init__(self, published: Published, bytes_per_s: float, down: Link) -> None:
        self.name = "registry"
        self.published = published
        self.up = Link(bytes_per_s)
        self.down = down
        self.is_gone = False
        self._seen: list[VirtualRegistry] = []

    def for_host(self, down: Link) -> VirtualRegistry:
        """Return the registry as a host sees it."""
        other = VirtualRegistry(self.published, 1.0, down)
        other.up = self.up
        self._seen.append(other)
        return other

    def go(self) -> None:
        """Answer no more."""
        for each in (self, *self._seen):
            each.is_gone = True

    @asynccontextmanager
    async def read(
        self, number: int, file: ListedFile, offset: int, size: int
    ) -> AsyncIterator[Pieces]:
        if self.is_gone:
            raise SourceError("registry: refused")
        yield Pieces(self._pieces(number, offset, size), offset, True)

    async def _pieces(self, number: int, offset: int, size: int) -> AsyncIterator[bytes]:
        content = self.published.contents[number]
        for begin in range(offset, offset + size, PIECE_BYTES):
            if self.is_gone:
                raise SourceError("registry: reset")
            data = content[begin : min(begin + PIECE_BYTES, offset + size)]
            await carry(data, self.up, self.down)
            yield data


class VirtualPeer:
    """A host as another one sees it."""

    is_peer = True

    def __init__(self, host: VirtualHost, seen_by: VirtualHost) -> None:
        self.name = f"peer {host.name}"
        self.host = host
        self.seen_by = seen_by

    @asynccontextmanager
    async def read(
        self, number: int, file: ListedFile, offset: int, size: int
    ) -> AsyncIterator[Pieces]:
        await asyncio.sleep(self.host.answer_s)
        if self.host.is_dead:
            raise SourceError(f"{self.name}: refused")
        if self.host.is_cut:
            await asyncio.sleep(3600.0)
        yield Pieces(self._pieces(number, offset, size), offset, True)

    async def _pieces(self, number: int, offset: int, size: int) -> AsyncIterator[bytes]:
        host, loop = self.host, asyncio.get_running_loop()
        served = arriving_bytes(host.copy, lambda: host.fetch, number, offset, offset + size)
        async for data in served:
            for begin in range(0, len(data), PIECE_BYTES):
                if host.is_dead:
                    raise SourceError(f"{self.name}: reset")
                if host.is_cut:
                    await asyncio.sleep(3600.0)
                host.pulled_s[self.seen_by.name] = loop.time()
                piece = data[begin : begin + PIECE_BYTES]
                await carry(piece, host.up, self.seen_by.down)
                yield piece

    async def watch(self, supply: Supply) -> None:
        """Do what ``PeerCopy.watch`` does, and what ``CopyServer`` answers."""
        clock = asyncio.get_running_loop().time
        is_first = True
        while True:
            await supply.wait_until_curious()
            asked_s = clock()
            while self.host.supply is None and not is_first and clock() < asked_s + HELD_S:
                await asyncio.sleep(0.002)
            is_first = False
            await asyncio.sleep(self.host.answer_s)
            if self.host.is_cut:
                await asyncio.sleep(ANSWER_S + HELD_S)
            if self.host.is_dead or self.host.is_cut:
                supply.hear(self.name, None, f"{self.name} does not answer")
            elif self.host.supply is None:
                supply.hear(self.name, None, f"{self.name} has no copy")
            else:
                supply.hear(self.name, self.host.report())
            await asyncio.sleep(max(asked_s + ASKED_S - clock(), 0.0))


class VirtualHost:
    """A host; it takes ``answer_s`` to answer anything."""

    def __init__(
        self, name: str, folder: Path, published: Published, bytes_per_s: float, answer_s: float
    ) -> None:
        self.name = name
        self.up, self.down = Link(bytes_per_s), Link(bytes_per_s)
        self.answer_s = answer_s
        self.is_dead = self.is_cut = False
        self.pulled_s: dict[str, float] = {}
        self.supply: Supply | None = None
        self.fetch: Fetch | None = None
        self.done_s = 0.0
        self.switches: list[tuple[float, str]] = []
        self.copy = new_copy(folder / name / published.sha256, published)
        self.executor: Executor = AtOnce()
        self._watching: list[asyncio.Task[None]] = []

    def copy_path(self, number: int) -> Path:
        return path_in(self.copy.folder, self.copy.manifest, number)

    def fill(self, published: Published, has: Callable[[int], bool] = lambda index: True) -> None:
        """Write the chunks that ``has`` names."""
        layout = self.copy.layout
        for number in (*published.manifest.own, published.manifest.gathered):
            for index in filter(has, range(*layout.file(number))):
                assert self.copy.put(index, [chunk_of(published, self.copy, index)])

    def serve(self) -> None:
        """Serve what it has; it fetches nothing."""
        clock = asyncio.get_running_loop().time
        self.fetch = Fetch(self.copy, self.executor, self.executor, clock)
        self.supply = Supply(self.fetch, self.name, {}, clock)

    async def die(self) -> None:
        """Ask for nothing and answer nothing; connections are reset."""
        self.is_dead = True
        await self._stop()

    async def cut(self) -> None:
        """Send nothing any more, without notice."""
        self.is_cut = True
        await self._stop()

    def report(self) -> PeerReport:
        assert self.supply is not None
        now_s = asyncio.get_running_loop().time()
        pulls = [name for name, at_s in self.pulled_s.items() if now_s - at_s < PULLS_S]
        return self.supply.report(len(pulls))

    def start(self, registry: VirtualRegistry | None, others: list[VirtualHost]) -> None:
        clock = asyncio.get_running_loop().time
        self.fetch = Fetch(self.copy, self.executor, self.executor, clock)
        self.supply = Supply(self.fetch, self.name, {}, clock)
        peers = [VirtualPeer(other, self) for other in others]
        sources: list[ByteSource] = [*peers]
        if registry is not None:
            sources.append(registry.for_host(self.down))
        self.supply.start(sources, 0.1 if peers else 0.0)
        self._watching = [asyncio.create_task(peer.watch(self.supply)) for peer in peers]

    async def wait(self) -> None:
        """Wait until it has all."""
        assert self.fetch is not None
        assert self.supply is not None
        upstream = ""
        clock = asyncio.get_running_loop().time
        while self.fetch.missing and not self.is_dead:
            await self.fetch.arrived.wait(0.05)
            if self.supply.upstream != upstream:
                upstream = self.supply.upstream
                self.switches.append((clock(), upstream))
        self.done_s = clock()

    async def _stop(self) -> None:
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        if self.supply is not None:
            await self.supply.close()

    async def close(self) -> None:
        await self._stop()
        if self.fetch is not None:
            await self.fetch.close()
        self.copy.close()
