"""Web servers of published folders: with ranges or without, slow, lying, held back, or gone."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from aiohttp import web

_PIECE_BYTES = 1 << 16
_SAVED_S = 0.05


class RegistryServer:
    """A folder at ``url``, served by a thread of this process until ``close``."""

    def __init__(
        self,
        folder: Path,
        *,
        bytes_per_s: float = 0.0,
        has_ranges: bool = True,
        change: Callable[[str, int, bytes], bytes] | None = None,
        redirect: Callable[[str], str | None] | None = None,
    ) -> None:
        """``bytes_per_s``: the rate of all answers together; 0: as fast as possible. ``change``:
        returns what is sent instead of bytes of a file, by its name and their offset.
        ``redirect``: returns where a path leads; None: nowhere."""
        self.folder = folder
        self.bytes_per_s = bytes_per_s
        self.has_ranges = has_ranges
        self.change = change
        self.redirect = redirect
        self.requests: list[str] = []
        """Path and range of each request."""
        self.queries: list[str] = []
        """The queries of the URLs."""
        self.sent_bytes = 0
        self.sent: Counter[str] = Counter()
        """The bytes sent of each file, by the path that was asked for."""
        self.is_broken = False
        """Whether connections are cut from now on."""
        self.is_silent = False
        """Whether answers stop, and connections stay."""
        self._held: dict[str, range] = {}
        self._free_s = 0.0
        self._loop = asyncio.new_event_loop()
        self._port = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10.0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def manifest_url(self) -> str:
        return f"{self.url}/manifest.json"

    def hold(self, path: str, after: int = 0, until: int = 1 << 62) -> None:
        """Send no byte of a file at or behind ``after``, up to ``until``, before ``let_go``."""
        self._held[path] = range(after, until)

    def let_go(self) -> None:
        self._held.clear()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    async def _start(self) -> None:
        self._runner = web.ServerRunner(
            web.Server(self._answer, access_log=None), shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.queries.append(request.query_string)
        self.requests.append(f"{request.path} {request.headers.get('Range', '')}".strip())
        if self.is_broken and request.transport is not None:
            request.transport.abort()
        if self.redirect is not None and (target := self.redirect(request.path)) is not None:
            return web.Response(status=302, headers={"Location": target})
        path = self.folder / request.path.lstrip("/")
        if not path.is_file():
            return web.Response(status=404)
        size = path.stat().st_size
        begin, end, status, headers = 0, size, 200, {}
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        if match and self.has_ranges:
            begin, end, status = int(match[1]), min(int(match[2]) + 1, size), 206
            headers = {"Content-Range": f"bytes {begin}-{end - 1}/{size}"}
        response = web.StreamResponse(status=status, headers=headers)
        response.content_length = end - begin
        await response.prepare(request)
        name = str(path.relative_to(self.folder))
        with path.open("rb") as file:
            return await self._send(request, response, file, name, begin, end)

    async def _send(
        self,
        request: web.BaseRequest,
        response: web.StreamResponse,
        file: BinaryIO,
        name: str,
        begin: int,
        end: int,
    ) -> web.StreamResponse:
        offset = begin
        while offset < end:
            held = self._held.get(request.path, range(0))
            if offset in held:
                await asyncio.sleep(0.02)
                continue
            most = held.start - offset if offset < held.start else end - offset
            piece = os.pread(file.fileno(), min(_PIECE_BYTES, end - offset, most), offset)
            if not piece:  # it was cut off meanwhile
                return response
            offset += len(piece)
            if self.change is not None:
                piece = self.change(name, offset - len(piece), piece)
            await self._pace(len(piece))
            while self.is_silent:
                await asyncio.sleep(0.05)
            if self.is_broken and request.transport is not None:
                request.transport.abort()
            try:
                await response.write(piece)
            except ConnectionError:
                return response
            self.sent_bytes += len(piece)
            self.sent[request.path] += len(piece)
        await response.write_eof()
        return response

    async def _pace(self, size: int) -> None:
        """Wait as a token bucket for all answers says, which holds what is sent in
        ``_SAVED_S``."""
        if not self.bytes_per_s:
            return
        now_s = time.monotonic()
        allowed_s = max(self._free_s, now_s - _SAVED_S)
        self._free_s = allowed_s + size / self.bytes_per_s
        if self._free_s > now_s:
            await asyncio.sleep(self._free_s - now_s)
