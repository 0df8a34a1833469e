"""The courier's service for processes of its own host, over a Unix socket.

``brisk.copies.connection`` describes the protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from brisk.copies.connection import MOST_LINE_BYTES
from brisk.copies.manifest import Range
from brisk.copies.remote import Remote
from brisk.errors import BriskError, InvalidRequestError
from brisk.sourcing.log import LOGGER
from brisk.sourcing.sources.addresses import shown_url
from brisk.sourcing.table import CopyTable, OpenedCopy

MOST_CONNECTIONS = 1024
_CREDENTIALS = struct.Struct("3i")
_DIGITS = frozenset("0123456789abcdef")


class CourierService:
    """The service's connections, with the copies that each has opened."""

    def __init__(self, table: CopyTable, own_user: int) -> None:
        self._table = table
        self._own_user = own_user
        self._connections: set[asyncio.StreamWriter] = set()

    @property
    def is_used(self) -> bool:
        return bool(self._connections)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends, or sends a line that is too long.

        A connection of another user, or one too many, is closed at once.
        """
        if len(self._connections) >= MOST_CONNECTIONS or not self._is_own(writer):
            writer.close()
            return
        self._connections.add(writer)
        opened: dict[str, OpenedCopy] = {}
        try:
            while line := await _read_line(reader):
                await self._answer(line, writer, opened)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            self._connections.discard(writer)
            for copy in opened.values():
                self._table.give_back(copy)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _is_own(self, writer: asyncio.StreamWriter) -> bool:
        peer: socket.socket = writer.get_extra_info("socket")
        data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(data)
        if user not in (self._own_user, 0):
            LOGGER.warning(f"a process of user {user} was refused")
            return False
        return True

    async def _answer(
        self, line: bytes, writer: asyncio.StreamWriter, opened: dict[str, OpenedCopy]
    ) -> None:
        async def reply(answer: Mapping[str, Any]) -> None:
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()

        try:
            name, content = _request(line)
            if name == "open":
                remote = Remote(_text(content["url"]), _digest(content["sha256"]))
                if remote.sha256 not in opened:
                    opened[remote.sha256] = await self._open(remote, writer)
                else:
                    await opened[remote.sha256].has_head()
                copy = opened[remote.sha256]
                answer: Mapping[str, Any] = {"folder": str(copy.folder), "model": copy.model}
            elif name == "take":
                copy = self._table.find(_digest(content["sha256"]))
                is_begun = content.get("begun") is True
                path = await copy.take(_text(content["form"]), is_begun=is_begun)
                answer = {"path": None if path is None else str(path)}
            elif name == "await":
                await self._wait(content, reply)
                answer = {}
            elif name == "status":
                answer = {"copies": [_status(copy, self._table) for copy in self._table.copies]}
            else:
                raise InvalidRequestError(f"there is no request {name!r:.40}")
            await reply({"ok": answer})
        except BriskError as error:
            await reply({"error": {"code": error.code, "message": str(error)}})
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            await reply({"error": {"code": InvalidRequestError.code, "message": repr(error)}})

    async def _open(self, remote: Remote, writer: asyncio.StreamWriter) -> OpenedCopy:
        """Return the opened copy. Where another client's opening has failed, which asked another
        URL, or its head does not come, this one's is asked."""
        while True:
            copy = self._table.take(remote)
            try:
                await _or_gone(copy.has_head(), writer)
            except BaseException as error:
                is_described = copy.fetch is not None and copy.fetch.has_head
                is_others = not is_described and copy.remote.url != remote.url != ""
                is_in_vain = is_others and isinstance(error, BriskError)
                self._table.give_back(copy, is_in_vain=is_in_vain)
                if not is_in_vain:
                    raise
            else:
                return copy

    async def _wait(
        self, content: Mapping[str, Any], reply: Callable[[Mapping[str, Any]], Awaitable[None]]
    ) -> None:
        parts = [Range(*map(_whole, part)) for part in content["ranges"]]
        copy = self._table.find(_digest(content["sha256"]))
        async for progress in copy.wait_for(parts):
            await reply({"waiting": progress._asdict()})
        if content.get("compared") is True:
            async for progress in copy.wait_until_whole():
                await reply({"waiting": progress._asdict()})


def _status(copy: OpenedCopy, table: CopyTable) -> dict[str, Any]:
    """Return the copy's state, progress and sources as JSON, for observers."""
    shown = {"sha256": copy.remote.sha256, "url": shown_url(copy.remote.url)}
    if copy.fetch is None:
        return {**shown, "state": "opening"}
    fetch, layout = copy.fetch, copy.fetch.layout
    own = layout.own
    missing_bytes = layout.size_of(own & ~fetch.here)
    manifest = fetch.copy.manifest
    sources = copy.supply.records() if copy.supply is not None else []
    return {
        **shown,
        "state": "fetching" if fetch.missing else "here",
        "folder": str(copy.folder),
        "bytes_here": layout.size_of(own) - missing_bytes,
        "bytes": layout.size_of(own),
        "bytes_per_s": fetch.meter.rate(time.monotonic()),
        "forms": [manifest.files[number].form for number in fetch.forms],
        "upstream": copy.supply.upstream if copy.supply is not None else "",
        "receivers": table.receivers_of(copy.remote.sha256),
        "sources": [record._asdict() for record in sources],
        "problem": "" if fetch.failure is None else str(fetch.failure),
    }


async def _or_gone(awaitable: Awaitable[None], writer: asyncio.StreamWriter) -> None:
    """Wait for ``awaitable``. Raises ConnectionResetError if the other end of the connection
    closes first."""
    task = asyncio.ensure_future(awaitable)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=0.2)
            if not task.done() and (writer.is_closing() or _has_ended(writer)):
                raise ConnectionResetError("whoever asked has gone")
    finally:
        task.cancel()
    task.result()


def _has_ended(writer: asyncio.StreamWriter) -> bool:
    """Whether the other end is closed, by the kernel's report: no task reads from it just now."""
    peer: socket.socket = writer.get_extra_info("socket")
    state = peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if state:
        return True
    import select

    poller = select.poll()
    poller.register(peer.fileno(), select.POLLRDHUP)
    return bool(poller.poll(0))


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    """Return the next line; empty if the connection has ended, or the line is too long."""
    try:
        return await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError:
        return b""
    except asyncio.LimitOverrunError:
        LOGGER.warning(f"a request of more than {MOST_LINE_BYTES} bytes was refused")
        return b""


def _request(line: bytes) -> tuple[str, Mapping[str, Any]]:
    record = json.loads(line)
    if not isinstance(record, dict) or len(record) != 1:
        raise InvalidRequestError('expected {"<request>": {...}}')
    ((name, content),) = record.items()
    if not isinstance(content, dict):
        raise InvalidRequestError(f"{name}: expected an object")
    return name, content


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 1 << 16:
        raise InvalidRequestError(f"{value!r:.40} is no text")
    return value


def _digest(value: object) -> str:
    text = _text(value)
    if len(text) != 64 or set(text) - _DIGITS:
        raise InvalidRequestError(f"{text!r:.80} is no SHA-256")
    return text


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise InvalidRequestError(f"{value!r:.40} is no number of bytes")
    return value
