"""One copy that several open at once: local processes, other hosts, other couriers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from brisk.copies.local import HEADER_BYTES, PROGRESS
from brisk.copies.remote import Remote
from brisk.errors import UnavailableError
from brisk.settings import HostAddress
from brisk.sourcing import room
from brisk.sourcing import table as table_module
from brisk.sourcing.arriving import ArrivingCopy
from brisk.sourcing.room import open_present, remove
from brisk.sourcing.service import CourierService
from brisk.sourcing.serving import CopyServer
from brisk.sourcing.sources.downloads import Web
from brisk.sourcing.sources.peers import IDENTITY_HEADER, PeerCopy
from brisk.sourcing.sources.registry import Registry
from brisk.sourcing.table import CopyTable, OpenedCopy
from support.remote.couriers import free_ports
from support.remote.published import Published, fill, new_copy, publish
from support.remote.registries import RegistryServer
from support.waiting import PATIENCE_S, wait_until

CHUNK = 1 << 16


class SlowVerify:
    """``ArrivingCopy.verify``, which stops behind the first chunk until it is let go."""

    def __init__(self) -> None:
        self.count = 0
        self.let_go = threading.Event()
        self._verify = ArrivingCopy.verify

    def __call__(self, copy: ArrivingCopy) -> Iterator[int]:
        self.count += 1
        for index in self._verify(copy):
            yield index
            assert self.let_go.wait(PATIENCE_S)


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowVerify]:
    slow = SlowVerify()
    monkeypatch.setattr(ArrivingCopy, "verify", lambda copy: slow(copy))
    yield slow
    slow.let_go.set()


@pytest.fixture
def published(tmp_path: Path) -> Published:
    return publish(tmp_path / "p", 4 * CHUNK, chunk_bytes=CHUNK, weights_bytes=CHUNK)


@pytest.fixture
def folder(tmp_path: Path, published: Published) -> Path:
    """A copy as a boot leaves it: all of it has come, nothing is compared."""
    place = tmp_path / "remote" / published.sha256
    copy = new_copy(place, published)
    fill(published, copy, range(len(published.contents)))
    copy.close()
    with (place / PROGRESS).open("r+b") as file:
        file.write(bytes(HEADER_BYTES))
    return place


async def until(condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, condition, what)


def run(folder: Path, scenario: Callable[[CopyTable, str], Awaitable[None]]) -> None:
    """Run a scenario with a table and the URL at which its copies are served."""

    async def all_of_it() -> None:
        with ThreadPoolExecutor(4) as executor:
            web = Web()
            table = CopyTable(folder.parent, "host", web, executor, executor)
            server = CopyServer(table, 0, is_secure=True)
            (port,) = free_ports(1)
            await server.listen(HostAddress("127.0.0.1", port), None)
            try:
                await scenario(table, f"http://127.0.0.1:{port}/v1/copies/{folder.name}")
            finally:
                await table.close()
                await server.close()
                await web.close()

    asyncio.run(asyncio.wait_for(all_of_it(), 2 * PATIENCE_S))


async def statuses(url: str, count: int) -> set[int]:
    """Return how so many reports at once are answered."""

    async def one(session: aiohttp.ClientSession) -> int:
        async with session.get(url) as answer:
            return answer.status

    async with aiohttp.ClientSession() as session:
        return set(await asyncio.gather(*(one(session) for _ in range(count))))


def test_what_a_local_process_has_compared_is_not_compared_again_for_other_hosts(
    folder: Path, verify: SlowVerify
) -> None:
    async def scenario(table: CopyTable, url: str) -> None:
        copy = table.take(Remote("http://127.0.0.1:1/manifest.json", folder.name))
        await until(lambda: copy.arriving is not None and bool(copy.arriving.here()), "a chunk")
        assert await statuses(url, 10) == {404}
        assert copy.arriving is not None
        assert copy.arriving.here().bit_count() == 1
        verify.let_go.set()
        await copy.has_head()
        assert copy.arriving.here().bit_count() == copy.arriving.layout.count
        assert await statuses(url, 2) == {200}
        assert verify.count == 1
        table.give_back(copy)

    run(folder, scenario)


def test_all_other_hosts_and_then_a_local_process_wait_for_one_comparison(
    folder: Path, verify: SlowVerify, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    shelving = CopyServer._shelving

    def noted(server: CopyServer, sha256: str) -> asyncio.Task[None]:
        asked.append(sha256)
        return shelving(server, sha256)

    monkeypatch.setattr(CopyServer, "_shelving", noted)

    async def scenario(table: CopyTable, url: str) -> None:
        asking = asyncio.create_task(statuses(url, 10))
        await until(lambda: verify.count > 0 and len(asked) == 10, "a comparison, and all hosts")
        copy = table.take(Remote("http://127.0.0.1:1/manifest.json", folder.name))
        opening = asyncio.create_task(copy.has_head())
        await asyncio.sleep(0)  # it waits now
        assert not asking.done()
        assert not opening.done()
        verify.let_go.set()
        assert await asking == {200}
        await opening
        assert verify.count == 1
        table.give_back(copy)

    run(folder, scenario)


def test_who_gives_up_twice_while_a_copy_is_opened_leaves_nothing_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second opening waits for the closing of the first, which waits for a thread."""
    begun, let_go = threading.Event(), threading.Event()

    def slowly(place: Path) -> ArrivingCopy | None:
        begun.set()
        assert let_go.wait(PATIENCE_S)
        return open_present(place)

    monkeypatch.setattr(room, "open_present", slowly)

    async def scenario(table: CopyTable, url: str) -> None:
        remote = Remote("http://127.0.0.1:1/manifest.json", folder.name)
        table.give_back(await begun_opening(table, remote, begun))
        again = table.take(remote)
        await asyncio.sleep(0)  # it waits now
        table.give_back(again)
        await asyncio.sleep(0)
        let_go.set()
        while table.is_at_work:
            await table.closed()

    run(folder, scenario)
    assert remove(folder)


def test_who_gives_up_while_other_copies_are_closed_leaves_them_to_be_closed(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new copy is made once those that are being closed have made room."""
    begun, let_go = threading.Event(), threading.Event()
    waits = threading.Event()
    closed = CopyTable.closed

    def slowly(place: Path) -> ArrivingCopy | None:
        if place == folder:
            begun.set()
            assert let_go.wait(PATIENCE_S)
        return open_present(place)

    async def noted(table: CopyTable) -> None:
        waits.set()
        await closed(table)

    monkeypatch.setattr(room, "open_present", slowly)
    monkeypatch.setattr(CopyTable, "closed", noted)
    new = publish(tmp_path / "new", 2 * CHUNK, chunk_bytes=CHUNK, weights_bytes=CHUNK)
    server = RegistryServer(new.folder)

    async def scenario(table: CopyTable, url: str) -> None:
        remote = Remote("http://127.0.0.1:1/manifest.json", folder.name)
        table.give_back(await begun_opening(table, remote, begun))
        making = table.take(Remote(server.manifest_url, new.sha256))
        await until(waits.is_set, "the wait for the closing")
        table.give_back(making)
        for _ in range(5):  # it is told that its user has gone
            await asyncio.sleep(0)
        let_go.set()
        while table.is_at_work:
            await table.closed()

    try:
        run(folder, scenario)
    finally:
        server.close()
    assert remove(folder)


def test_an_opening_does_not_wait_while_others_are_compared(
    tmp_path: Path, folder: Path, verify: SlowVerify
) -> None:
    other = publish(tmp_path / "other", 2 * CHUNK, chunk_bytes=CHUNK, weights_bytes=0)
    place = tmp_path / "remote" / other.sha256
    copy = new_copy(place, other)
    fill(other, copy, [other.manifest.gathered])
    copy.close()

    async def scenario(table: CopyTable, url: str) -> None:
        with ThreadPoolExecutor(1) as executor, ThreadPoolExecutor(1) as comparing:
            small = CopyTable(folder.parent, "host", table.web, executor, comparing)
            compared = small.take(Remote("http://127.0.0.1:1/manifest.json", folder.name))
            await until(lambda: verify.count > 0, "the comparison")
            opened = small.take(Remote("http://127.0.0.1:1/manifest.json", other.sha256))
            await asyncio.wait_for(opened.has_head(), PATIENCE_S / 2)
            verify.let_go.set()
            await compared.has_head()
            await small.close()

    run(folder, scenario)


def test_hosts_that_pulled_are_forgotten_whatever_names_they_gave(folder: Path) -> None:
    async def scenario(table: CopyTable, url: str) -> None:
        server = table.receivers_of.__self__  # type: ignore[attr-defined]
        async with aiohttp.ClientSession(f"{url}/files/") as session:
            for name in map(str, range(9)):
                await (await session.get("0", headers={IDENTITY_HEADER: name})).read()
        assert len(server._pulls[folder.name]) == 9
        await until(lambda: server.tidy() or not server._pulls, "none that pulls")

    run(folder, scenario)


async def begun_opening(table: CopyTable, remote: Remote, begun: threading.Event) -> OpenedCopy:
    copy = table.take(remote)
    await until(begun.is_set, "the opening's thread")
    return copy


def test_who_names_another_url_is_not_refused_for_one_that_is_dead(
    tmp_path: Path, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two entries name one manifest; the second joins the opening of the first."""
    begun, let_go = threading.Event(), threading.Event()
    obtain = table_module.obtain

    async def of_dead_one(
        registry: Registry, peers: Sequence[PeerCopy], sha256: str
    ) -> tuple[bytes, bytes]:
        if begun.is_set():
            return await obtain(registry, peers, sha256)
        begun.set()
        assert await asyncio.to_thread(let_go.wait, PATIENCE_S)
        raise UnavailableError("the first one's URL is dead")

    monkeypatch.setattr(table_module, "obtain", of_dead_one)
    server = RegistryServer(published.folder)

    async def scenario(table: CopyTable, url: str) -> None:
        async with service_of(table, tmp_path / "socket") as place:
            first = asyncio.create_task(answer_of(place, "http://127.0.0.1:1/a", published))
            await until(begun.is_set, "the first opening")
            second = asyncio.create_task(answer_of(place, server.manifest_url, published))
            await until(lambda: table.find(published.sha256).users == 2, "the second one")
            let_go.set()
            answers = await first, await second
        assert "the first one's URL is dead" in answers[0]["error"]["message"]
        assert "ok" in answers[1]

    try:
        run(tmp_path / "remote" / published.sha256, scenario)
    finally:
        server.close()


@contextlib.asynccontextmanager
async def service_of(table: CopyTable, place: Path) -> AsyncIterator[Path]:
    service = CourierService(table, os.geteuid())
    listener = await asyncio.start_unix_server(service.serve, str(place))
    try:
        yield place
    finally:
        listener.close()


async def answer_of(place: Path, url: str, published: Published) -> Any:
    """Return what a client is told that opens the copy and goes."""
    reader, writer = await asyncio.open_unix_connection(place)
    content = {"url": url, "sha256": published.sha256}
    writer.write(json.dumps({"open": content}).encode() + b"\n")
    answer = json.loads(await reader.readline())
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("is_dead", "patience_s"),
    [pytest.param(True, 0.1, id="dead"), pytest.param(False, PATIENCE_S, id="wrong bytes")],
)
def test_a_manifest_that_is_here_is_no_reason_to_stay_with_a_url_that_gives_nothing(
    tmp_path: Path,
    published: Published,
    monkeypatch: pytest.MonkeyPatch,
    is_dead: bool,
    patience_s: float,
) -> None:
    """All that has come of the copy is its manifest."""
    place = tmp_path / "remote" / published.sha256
    new_copy(place, published).close()
    server = RegistryServer(published.folder)
    liar = RegistryServer(published.folder, change=lambda name, offset, piece: bytes(len(piece)))
    first_url = "http://127.0.0.1:1/manifest.json" if is_dead else liar.manifest_url
    begun, let_go = threading.Event(), threading.Event()

    def slowly(place: Path) -> ArrivingCopy | None:
        begun.set()
        assert let_go.wait(PATIENCE_S)
        return open_present(place)

    has_head = OpenedCopy.has_head

    async def impatiently(copy: OpenedCopy) -> None:
        patience = patience_s if copy.remote.url == first_url else PATIENCE_S
        monkeypatch.setattr(table_module, "OPEN_PATIENCE_S", patience)
        await has_head(copy)

    monkeypatch.setattr(room, "open_present", slowly)
    monkeypatch.setattr(OpenedCopy, "has_head", impatiently)

    async def scenario(table: CopyTable, url: str) -> None:
        async with service_of(table, tmp_path / "socket") as socket:
            first = asyncio.create_task(answer_of(socket, first_url, published))
            await until(begun.is_set, "the first opening")
            second = asyncio.create_task(answer_of(socket, server.manifest_url, published))
            await until(lambda: table.find(published.sha256).users == 2, "the second one")
            let_go.set()
            assert "error" in await first
            assert "ok" in await second

    try:
        run(place, scenario)
    finally:
        server.close()
        liar.close()


def test_what_another_courier_still_compares_is_not_emptied_under_it(folder: Path) -> None:
    first = ArrivingCopy(folder)
    comparing = first.verify()
    next(comparing)
    with pytest.raises(UnavailableError, match=r"is used by another process.*a cache of its own"):
        ArrivingCopy(folder)
    assert first.here() == 1
    list(comparing)
    second = ArrivingCopy(folder)
    assert second.is_trusted
    assert second.here() == first.here()
    first.close()
    second.close()
