"""The beginning of a copy, where nobody answers for what was published."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from brisk.errors import UnavailableError
from brisk.sourcing.sources import beginning, downloads
from brisk.sourcing.sources.downloads import Web
from brisk.sourcing.sources.peers import PeerHost
from brisk.sourcing.sources.registry import Registry
from support.remote.published import publish

PATIENCE_S = 0.3
QUERY = "?token=word"


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginning, "OPEN_PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr(downloads, "SILENCE_S", PATIENCE_S / 2)


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a socket that accepts connections, and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


HEADER = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"


@pytest.fixture(params=[HEADER])
def trickling(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server whose answer, after its first bytes, never ends, and comes in small
    pieces."""
    is_over = threading.Event()

    def trickle(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(request.param)
            while not is_over.wait(PATIENCE_S / 20):
                connection.sendall(b"{")

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=trickle, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        is_over.set()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def obtain(url: str, peers: Sequence[str] = ()) -> None:
    """Ask for a manifest, as ``beginning.obtain`` does; the test ends if it waits."""
    sha256 = "0" * 64

    async def run() -> None:
        web = Web()
        try:
            copies = [PeerHost(peer, web, "me", is_secure=False).copy_of(sha256) for peer in peers]
            opened = beginning.obtain(Registry(url, web), copies, sha256)
            await asyncio.wait_for(opened, 100 * PATIENCE_S)
        finally:
            await web.close()

    asyncio.run(run())


def test_who_refuses_every_connection_is_asked_again_and_named_at_once_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = 0
    manifest = Registry.manifest

    async def counted(registry: Registry) -> bytes:
        nonlocal asked
        asked += 1
        return await manifest(registry)

    monkeypatch.setattr(Registry, "manifest", counted)
    began_s = time.monotonic()
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:9/gone"):
        obtain("http://127.0.0.1:9/gone/manifest.json")
    assert time.monotonic() - began_s >= PATIENCE_S
    assert asked > 1
    (line,) = caplog.messages
    assert "cannot be opened yet" in line
    assert "127.0.0.1:9/gone" in line


@pytest.mark.parametrize("peer_is_silent", [False, True])
def test_a_registry_that_accepts_and_sends_nothing_is_named_after_some_time(
    silent: str, peer_is_silent: bool
) -> None:
    peers = [silent] if peer_is_silent else []
    with pytest.raises(UnavailableError, match=rf"{silent}/m/manifest\.json: no byte") as caught:
        obtain(f"http://{silent}/m/manifest.json{QUERY}", peers)
    assert "word" not in str(caught.value)


def test_a_registry_whose_manifest_only_trickles_is_named_after_some_time(trickling: str) -> None:
    with pytest.raises(UnavailableError, match=rf"{trickling}/m/manifest\.json: only \d+ bytes"):
        obtain(f"http://{trickling}/m/manifest.json")


@pytest.mark.parametrize("trickling", [b"HTTP/1.1 200 OK\r\nServer: "], indirect=True)
def test_a_registry_whose_header_only_trickles_is_named_after_some_time(trickling: str) -> None:
    with pytest.raises(UnavailableError, match=rf"{trickling}/m/manifest\.json: no byte"):
        obtain(f"http://{trickling}/m/manifest.json")


def test_of_many_hosts_that_have_a_manifest_few_send_it(silent: str, tmp_path: Path) -> None:
    published = publish(tmp_path / "m", 1000)
    text = (published.folder / "manifest.json").read_bytes()
    asked: list[str] = []

    class Peer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *words: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Peer)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()

    async def run() -> tuple[bytes, bytes]:
        web = Web()
        try:
            host = PeerHost(f"127.0.0.1:{server.server_port}", web, "me", is_secure=False)
            peers = [host.copy_of(published.sha256) for _ in range(40)]
            registry = Registry(f"http://{silent}/m/manifest.json", web)
            return await beginning.obtain(registry, peers, published.sha256)
        finally:
            await web.close()

    try:
        assert asyncio.run(run()) == (text, b"")
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
    assert 1 <= len(asked) <= 10
