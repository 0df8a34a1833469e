"""Redirects of a public URL where the environment names a proxy, which itself is not public."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from brisk.sourcing.sources.downloads import Web
from brisk.sourcing.sources.failures import SourceError

FIRST = "http://8.8.8.8/a"


class Proxy:
    """A proxy that answers itself: ``FIRST`` redirects to ``target``, all else is its URL."""

    def __init__(self) -> None:
        self.target = ""
        self.asked: list[str] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                proxy.asked.append(self.path)
                body = self.path.encode()
                self.send_response(302 if self.path == FIRST else 200)
                if self.path == FIRST:
                    location = proxy.target.encode().decode("latin-1")
                    self.send_header("Location", location)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(params=["localhost", "127.0.0.1"])
def proxy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    made = Proxy()
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("http_proxy", f"http://{request.param}:{made.port}")
    yield made
    made.close()


def fetched() -> bytes:
    async def fetch() -> bytes:
        web = Web()
        try:
            return await web.get_small(FIRST, 1000)
        finally:
            await web.close()

    return asyncio.run(fetch())


@pytest.mark.parametrize("target", ["http://8.8.4.4/b", "http://store.invalid/b"])
def test_one_to_what_is_public_or_only_the_proxy_knows_is_followed(
    proxy: Proxy, target: str
) -> None:
    proxy.target = target
    assert fetched() == target.encode()
    assert proxy.asked == [FIRST, target]


@pytest.mark.parametrize("target", ["http://localhost/b", "http://127.0.0.1/b", "http://[::1]/b"])
def test_one_into_this_network_is_not(proxy: Proxy, target: str) -> None:
    proxy.target = target
    with pytest.raises(SourceError, match=r"redirects to .*, which is not public"):
        fetched()
    assert proxy.asked == [FIRST]


@pytest.mark.parametrize("host", ["localhost", "\uff11\uff12\uff17.0.0.1"])
def test_one_that_goes_past_the_proxy_is_checked_when_it_is_connected(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """Also an address in full-width digits: no resolver is asked for it."""
    monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
    proxy.target = f"http://{host}:{proxy.port}/b"
    with pytest.raises(SourceError, match="is not public"):
        fetched()
    assert proxy.asked == [FIRST]


def test_a_proxy_that_refuses_is_told_without_the_urls_query(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not know CONNECT, by which a proxy leads to https."""
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")

    async def fetch() -> None:
        web = Web()
        try:
            await web.get_small("https://models.example/a?signature=secret", 1000)
        finally:
            await web.close()

    with pytest.raises(SourceError, match=r"models\.example/a: the proxy answers 501") as caught:
        asyncio.run(fetch())
    assert "secret" not in str(caught.value)
