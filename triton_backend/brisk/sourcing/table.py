"""The table of copies that local processes have opened, which are fetched while they are open."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from brisk.copies.courier import FetchProgress
from brisk.copies.manifest import Range
from brisk.copies.remote import Remote
from brisk.errors import (
    BriskError,
    InvalidModelError,
    InvalidRequestError,
    UnavailableError,
)
from brisk.sourcing import room
from brisk.sourcing.arriving import ArrivingCopy
from brisk.sourcing.fetching import Fetch
from brisk.sourcing.lanes import Bell
from brisk.sourcing.log import LOGGER
from brisk.sourcing.policies.worth import form_key, likely_form
from brisk.sourcing.sources.addresses import check_url
from brisk.sourcing.sources.beginning import OPEN_PATIENCE_S, obtain
from brisk.sourcing.sources.downloads import Web
from brisk.sourcing.sources.peers import PeerCopy, PeerHost
from brisk.sourcing.sources.registry import ByteSource, Registry
from brisk.sourcing.supply import Supply

HOLD_S = 0.2
"""The time for peers to answer before the registry is asked; peers that did not answer the last
time are not waited for."""

LINGER_S = 1.0
"""The time for which a copy without users is still fetched: one process opens it to see what the
model is, and another decides what a start takes."""


class OpenedCopy:
    """A copy that a client has opened: it is fetched from then on, until it is closed."""

    def __init__(
        self, table: CopyTable, remote: Remote, before: asyncio.Task[None] | None
    ) -> None:
        """Begin to open the copy. ``before``: the closing of its last opening, awaited first."""
        self.folder = table.base / remote.sha256
        self.users = 0
        self.leaving: asyncio.TimerHandle | None = None
        """The timer that closes the copy; set while the copy is arriving and has no users."""
        self.remote = remote
        self.arriving: ArrivingCopy | None = None
        self.fetch: Fetch | None = None
        self.supply: Supply | None = None
        self._table = table
        self._before = before
        self._registry: Registry | None = None
        self._peers: list[PeerCopy] = []
        self._watching: list[asyncio.Task[None]] = []
        self._guessing: asyncio.Task[None] | None = None
        self._is_closing = False
        self._thread: asyncio.Future[Any] | None = None
        self._ready = asyncio.create_task(self._prepare())
        self._ready.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def has_head(self) -> None:
        """Wait for the bytes that describe the model. Raises BriskError if they do not arrive."""
        fetch = await self._fetch()
        head = [] if fetch.copy.is_whole else [fetch.copy.manifest.gathered_range]
        heard_s = time.monotonic()
        async for progress in self.wait_for(head):
            heard_s = max(heard_s, fetch.heard_s)
            if time.monotonic() - heard_s > OPEN_PATIENCE_S:
                raise UnavailableError(
                    f"nothing came in {OPEN_PATIENCE_S:.0f} s: {progress.problem}"
                )

    @property
    def has_failed(self) -> bool:
        """Whether it could not be opened."""
        is_over = self._ready.done() and not self._ready.cancelled()
        return is_over and self._ready.exception() is not None

    @property
    def model(self) -> str:
        """The path of the model's file. Precondition: ``has_head`` has returned."""
        assert self.arriving is not None
        return str(self.arriving.model)

    async def take(self, form: str, *, is_begun: bool) -> Path | None:
        fetch = await self._fetch()
        if is_begun:
            return await fetch.take_begun(form)
        supply = self._supplied(fetch)
        if fetch.copy.manifest.form_named(form) is not None:
            self._table.form_key = form_key(form)
        return await fetch.take(form, supply.best_rate, lambda: supply.is_hopeless)

    async def wait_for(self, parts: Sequence[Range]) -> AsyncIterator[FetchProgress]:
        """Wait as ``Fetch.wait_for`` does; also raises InvalidModelError if nothing arrives and
        no source is left (``Supply.is_hopeless``)."""
        fetch = await self._fetch()
        supply = self._supplied(fetch)
        async for progress in fetch.wait_for(parts, supply.problem):
            if progress.problem and supply.is_hopeless:
                raise InvalidModelError(progress.problem)
            yield progress

    async def wait_until_whole(self) -> AsyncIterator[FetchProgress]:
        """Wait as ``Fetch.wait_until_whole`` does."""
        async for progress in (await self._fetch()).wait_until_whole():
            yield progress

    @property
    def is_compared(self) -> bool:
        """Whether its bytes are being compared with the digests that the manifest lists."""
        return self.fetch is not None and self.fetch.completion.is_going_on

    @property
    def is_arriving(self) -> bool:
        """Whether chunks are missing that some source may still give."""
        if self.fetch is None or self.supply is None:
            return False
        is_given_up = self.fetch.failure is not None or self.supply.is_hopeless
        return bool(self.fetch.missing) and not is_given_up

    def close(self) -> asyncio.Task[None]:
        """Stop fetching and close the copy; return the task that does so."""
        self._is_closing = True
        return asyncio.create_task(self._close())

    async def _fetch(self) -> Fetch:
        await asyncio.shield(self._ready)
        assert self.fetch is not None
        return self.fetch

    async def _prepare(self) -> None:
        table, folder = self._table, self.folder
        if self._before is not None:
            await asyncio.shield(self._before)
        if (shelving := table.shelving.get(self.remote.sha256)) is not None:
            await asyncio.shield(shelving)
        self._peers = [peer.copy_of(self.remote.sha256) for peer in table.peers]
        copy = await self._in_thread(table.executor, room.open_present, folder)
        url = self.remote.url or await asyncio.to_thread(room.read_origin, folder)
        self.remote = self.remote._replace(url=url)
        if url:
            check_url(url, table.allowed_urls)
            self._registry = Registry(url, table.web)
        elif copy is None:
            raise InvalidModelError(f"there is no copy {folder}, and no URL to fetch it from")
        head = b""
        if copy is None:
            assert self._registry is not None
            text, head = await obtain(self._registry, self._peers, self.remote.sha256)
            copy = await self._make(text)
        self.arriving = copy
        if url:
            await asyncio.to_thread(room.note_origin, folder, url)
        if not copy.is_trusted:
            await self._in_thread(table.comparing, self._verify, copy)
        self.fetch = Fetch(copy, table.executor, table.comparing)
        self.fetch.begin_with(head)
        table.note_open(self.remote.sha256, self.fetch)
        if self.fetch.missing:
            await self._guess(self.fetch)
            self._supplied(self.fetch)

    async def _guess(self, fetch: Fetch) -> None:
        """Begin to fetch the likely prepared form before a start takes one.

        This decision comes before the first request, since dropping an unwanted request costs a
        connection.
        """
        names = [file.form for file in fetch.copy.manifest.files if file.form]
        if likely := likely_form(names, self._table.form_key):
            rates = (self._table.best_rates.get(each.name, 0.0) for each in self._sources)
            is_decided = asyncio.Event()
            guessing = fetch.guess(likely, max(rates, default=0.0), is_decided.set)
            self._guessing = asyncio.create_task(guessing)
            await is_decided.wait()

    async def _make(self, text: bytes) -> ArrivingCopy:
        """Open the copy on disk, or make it; if there is no space, first close lingering copies.

        Raises UnavailableError.
        """
        table = self._table
        while True:
            await table.closed()
            try:
                return await self._in_thread(
                    table.executor, room.open_or_make, self.folder, text, table.limit_bytes
                )
            except UnavailableError:
                if not table.let_go():
                    raise

    def _verify(self, copy: ArrivingCopy) -> None:
        LOGGER.info(f"{copy.folder.name[:16]} is compared with its digests: the machine started")
        for _ in copy.verify():
            if self._is_closing:
                return

    @property
    def _sources(self) -> list[ByteSource]:
        return [*self._peers, *([] if self._registry is None else [self._registry])]

    def _supplied(self, fetch: Fetch) -> Supply:
        if self.supply is None:
            table = self._table
            self.supply = Supply(fetch, table.identity, table.best_rates)
            gone = [peer.name for peer in self._peers if not peer.answers]
            self.supply.start(self._sources, HOLD_S if self._peers else 0.0, gone)
            self._watching = [asyncio.create_task(peer.watch(self.supply)) for peer in self._peers]
        return self.supply

    async def _in_thread(self, executor: Executor, function: Any, *arguments: Any) -> Any:
        """Run a step in a thread. ``_close`` waits for it even if this call is canceled. Raises
        UnavailableError for its OSError."""
        future = asyncio.get_running_loop().run_in_executor(executor, function, *arguments)
        self._thread = future
        try:
            return await asyncio.shield(future)
        except OSError as error:
            raise UnavailableError(f"{self.folder}: {error.strerror or error}") from error

    async def _close(self) -> None:
        self._ready.cancel()
        if self._thread is not None:
            with contextlib.suppress(OSError, BriskError):
                late = await self._thread
                if isinstance(late, ArrivingCopy) and self.arriving is None:
                    self.arriving = late
        await asyncio.gather(self._ready, return_exceptions=True)
        if self._before is not None:  # whoever opens the copy next waits for this task alone
            await asyncio.wait([self._before])
        tasks = [*self._watching, *([self._guessing] if self._guessing is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.supply is not None:
            await self.supply.close()
        if self.fetch is not None:
            self._table.note_open(self.remote.sha256, None)
            await self.fetch.close()
        if self.arriving is not None:
            self.arriving.close()
            await asyncio.to_thread(room.write_rates, self._table.base, self._table.best_rates)


class CopyTable:
    """The table of open copies. Used from one event loop only."""

    def __init__(
        self,
        base: Path,
        identity: str,
        web: Web,
        executor: Executor,
        comparing: Executor,
        peers: Sequence[PeerHost] = (),
        allowed_urls: Sequence[str] | None = None,
        limit_bytes: int | None = None,
    ) -> None:
        """Make a table without open copies. ``base``: the directory of copies. ``identity``: this
        host's, for peers. ``comparing``: for comparisons of whole files, which take long."""
        self.base = base
        self.identity = identity
        self.web = web
        self.executor = executor
        self.comparing = comparing
        self.peers = peers
        self.allowed_urls = allowed_urls
        self.limit_bytes = limit_bytes
        self.best_rates = room.read_rates(base)
        """The best bytes/s ever seen, by the sources' names; under the empty name, of all sources
        together."""
        self.form_key = ""
        """The key of the prepared forms that fit this machine; empty until one is taken."""
        self.opened = Bell()
        """Rung whenever another copy can be served."""
        self.receivers_of: Callable[[str], int] = lambda sha256: 0
        """Returns how many hosts pull the copy of this digest from this host."""
        self.fetches: dict[str, Fetch] = {}
        """The fetches of the copies that are fetched or used here, by digest."""
        self.shelving: dict[str, asyncio.Task[None]] = {}
        """The openings for other hosts that are going on, of copies that no local process uses."""
        self._opened: dict[str, OpenedCopy] = {}
        self._closing: dict[str, asyncio.Task[None]] = {}

    def take(self, remote: Remote) -> OpenedCopy:
        """Return the copy, opened unless it already is. Call ``give_back`` when it is not needed
        any more."""
        copy = self._opened.get(remote.sha256)
        if copy is not None and copy.has_failed:  # its users are being told
            self._let_go(copy)
            copy = None
        if copy is None:
            copy = OpenedCopy(self, remote, self._closing.get(remote.sha256))
            self._opened[remote.sha256] = copy
        if copy.leaving is not None:
            copy.leaving.cancel()
            copy.leaving = None
        copy.users += 1
        return copy

    def find(self, sha256: str) -> OpenedCopy:
        """Return the open copy. Raises InvalidRequestError if it is not open."""
        copy = self._opened.get(sha256)
        if copy is None:
            raise InvalidRequestError(f"nobody has opened the copy {sha256}")
        return copy

    def give_back(self, copy: OpenedCopy, *, is_in_vain: bool = False) -> None:
        """``is_in_vain``: whether to open it anew, also for those who still wait for its head."""
        copy.users -= 1
        if (copy.users and not is_in_vain) or self._opened.get(copy.remote.sha256) is not copy:
            return
        if not is_in_vain and (copy.is_arriving or copy.is_compared):
            self._linger(copy)
        else:
            self._let_go(copy)

    def _linger(self, copy: OpenedCopy) -> None:
        """Close the copy later, and not while it is compared: it could not be opened until that
        has ended."""

        def end() -> None:
            self._linger(copy) if copy.is_compared else self._let_go(copy)

        copy.leaving = asyncio.get_running_loop().call_later(LINGER_S, end)

    def _let_go(self, copy: OpenedCopy) -> None:
        sha256 = copy.remote.sha256
        del self._opened[sha256]
        closing = copy.close()
        self._closing[sha256] = closing

        def forget(task: asyncio.Task[None]) -> None:
            if self._closing.get(sha256) is task:
                del self._closing[sha256]

        if copy.leaving is not None:
            copy.leaving.cancel()
        closing.add_done_callback(forget)

    @property
    def opening(self) -> set[str]:
        """The digests of the copies that are open but not yet ready to be fetched or served."""
        return self._opened.keys() - self.fetches.keys()

    @property
    def is_at_work(self) -> bool:
        """Whether copies are being compared with their digests, or closed: their files may still
        be synced to the disk."""
        is_comparing = any(copy.is_compared for copy in self._opened.values())
        return is_comparing or bool(self._closing) or bool(self.shelving)

    def supply_of(self, sha256: str) -> Supply | None:
        copy = self._opened.get(sha256)
        return None if copy is None else copy.supply

    def note_open(self, sha256: str, fetch: Fetch | None) -> None:
        if fetch is None:
            self.fetches.pop(sha256, None)
        else:
            self.fetches[sha256] = fetch
            self.opened.ring()

    def let_go(self) -> bool:
        """Close the lingering copies, which have no users; return False if there are none."""
        leaving = [each for each in self._opened.values() if each.leaving is not None]
        for copy in leaving:
            self._let_go(copy)
        return bool(leaving)

    async def closed(self) -> None:
        """Wait until all copies that are being closed are closed, which goes on if the wait is
        canceled."""
        if self._closing:
            await asyncio.wait(self._closing.values())

    @property
    def copies(self) -> list[OpenedCopy]:
        """The open copies."""
        return list(self._opened.values())

    async def close(self) -> None:
        for copy in list(self._opened.values()):
            self._let_go(copy)
        await self.closed()
