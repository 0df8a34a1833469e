"""Sources whose answers no server would send: their own fault, and nobody else's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from brisk.copies.manifest import ListedFile
from brisk.sourcing.sources import registry
from brisk.sourcing.sources.downloads import Web
from brisk.sourcing.sources.failures import SourceError
from brisk.sourcing.sources.registry import Pieces
from support.remote.published import Published, publish
from support.remote.virtual_hosts import Link, VirtualHost, VirtualRegistry
from support.virtual_loop import run_virtually
from support.waiting import PATIENCE_S

RATE = 8e6
LONG = "1" * 5000
"""A number that Python refuses to read."""


@pytest.fixture
def answer() -> Iterator[tuple[str, list[bytes]]]:
    """The URL of a server, and the list of its answers, one for each connection."""
    answers: list[bytes] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(answers.pop(0))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/m/model.onnx", answers
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


@pytest.mark.parametrize(
    "line",
    [
        f"Content-Range: bytes {LONG}-3/9",
        f"Content-Range: bytes 0-3/{LONG}",
        "Content-Range: bytes ²-3/9",
        "Content-Range: lines 0-3/9",
        "Content-Range:",
    ],
    ids=lambda line: line[:24],
)
def test_a_range_that_is_none_is_the_sources_failure(
    answer: tuple[str, list[bytes]], line: str
) -> None:
    url, answers = answer
    answers.append(
        f"HTTP/1.1 206 Partial Content\r\n{line}\r\nContent-Length: 4\r\n\r\nabcd".encode()
    )

    async def read() -> None:
        web = Web()
        try:
            async with web.get_range(url, 0, 4, 9):
                pass
        finally:
            await web.close()

    with pytest.raises(SourceError, match="answers with the range"):
        asyncio.run(read())


def test_what_is_no_http_is_told_without_the_urls_query(
    answer: tuple[str, list[bytes]],
) -> None:
    """It may be what lets one in, as the signature of an object store."""
    url, answers = answer
    answers += [b"nonsense\r\n\r\n"] * 2

    async def read() -> None:
        web = Web()
        try:
            with pytest.raises(SourceError, match=r"/m/model\.onnx: the answer is no") as caught:
                await web.get_small(f"{url}?signature=secret", 100)
            assert "secret" not in str(caught.value)
            with pytest.raises(SourceError, match=r"/m/model\.onnx: the answer is no") as caught:
                async with web.get_range(f"{url}?signature=secret", 0, 4, 9):
                    pass
            assert "secret" not in str(caught.value)
        finally:
            await web.close()

    asyncio.run(read())


class OddRegistry(VirtualRegistry):
    """One whose answers raise what no reader of answers expects."""

    def for_host(self, down: Link) -> VirtualRegistry:
        return self

    @asynccontextmanager
    async def read(
        self, number: int, file: ListedFile, offset: int, size: int
    ) -> AsyncIterator[Pieces]:
        await asyncio.sleep(0.001)
        raise ValueError("an odd answer")
        yield Pieces(self._pieces(number, offset, size), offset, True)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return publish(tmp_path_factory.mktemp("p"), 2_000_000, chunk_bytes=1 << 16)


def test_a_source_whose_answers_cannot_be_read_is_left_for_the_others(
    tmp_path: Path, published: Published
) -> None:
    host, peer = (VirtualHost(name, tmp_path, published, RATE, 0.001) for name in ("a", "b"))
    peer.fill(published)

    async def run() -> None:
        host.start(OddRegistry(published, RATE, Link(RATE)), [peer])
        assert host.fetch is not None
        assert host.supply is not None
        await asyncio.sleep(1.0)
        assert host.fetch.failure is None
        (problem,) = (each.problem for each in host.supply.records() if "odd" in each.problem)
        assert problem == "registry: ValueError('an odd answer')"
        peer.serve()
        await asyncio.wait_for(host.wait(), 10.0)
        assert not host.fetch.missing
        await host.close()
        await peer.close()

    run_virtually(run())


def test_a_file_that_is_opened_for_who_has_gone_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = publish(tmp_path / "m", 100_000)
    begun, let_go = threading.Event(), threading.Event()
    opened = registry._open

    def slowly(url: str, total: int) -> object:
        file = opened(url, total)
        begun.set()
        assert let_go.wait(PATIENCE_S)
        return file

    monkeypatch.setattr(registry, "_open", slowly)

    async def scenario() -> None:
        web = Web()
        source = registry.Registry((published.folder / "manifest.json").as_uri(), web)

        async def read() -> None:
            async with source.read(0, published.manifest.files[0], 0, 10):
                pytest.fail("it was given up")

        reading = asyncio.create_task(read())
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        reading.cancel()
        await asyncio.wait([reading])
        let_go.set()
        await web.close()

    asyncio.run(scenario())
    links = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    assert str(published.folder / "model.onnx") not in links
