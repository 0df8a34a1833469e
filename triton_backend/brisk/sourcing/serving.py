"""The server of copies to other hosts: reports of a copy and its bytes, also while it arrives.

| request | answer |
| --- | --- |
| ``GET /v1/copies/<SHA-256>`` | which chunks have arrived, as JSON (``peers.write_report``); |
| | with ``?since=<count>``: once more have arrived, or after 0.25 s |
| ``GET /v1/copies/<SHA-256>/manifest`` | the manifest |
| ``GET /v1/copies/<SHA-256>/files/<number>`` | with ``Range``: the bytes in order, as they |
| | arrive; the answer ends early when no more have arrived for 0.25 s |

Only verified bytes are served; a prepared form as it was published, without a seal.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl
import struct
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from aiohttp import web

from brisk.settings import HostAddress
from brisk.sourcing.arriving import ArrivingCopy
from brisk.sourcing.fetching import Fetch
from brisk.sourcing.log import LOGGER
from brisk.sourcing.policies.choosing import PeerReport
from brisk.sourcing.room import open_compared
from brisk.sourcing.sources.peers import HELD_S, IDENTITY_HEADER, write_report
from brisk.sourcing.table import CopyTable

MOST_CONNECTIONS = 64
PULLS_S = 0.4
"""The time after a host was last sent bytes for which it counts as one that pulls."""

HANDSHAKE_S = 5.0

SHELF_S = 30.0
"""The time after a host's last request for which a copy stays open that no local process uses."""

STUCK_S = 30.0
"""The time after which a connection whose client takes no bytes is ended."""

_READ_BYTES = 1 << 20
_BUFFERED_BYTES = 1 << 20
_PATH = re.compile(r"/v1/copies/([0-9a-f]{64})(?:/(manifest)|/files/(\d{1,4}))?")
_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{1,15})")


class CopyServer:
    """The server of copies to other hosts. Used from one event loop only."""

    def __init__(self, table: CopyTable, own_user: int, *, is_secure: bool) -> None:
        """Make a server; ``listen`` starts it.

        ``is_secure``: certificates decide which clients are served; else only processes of
        ``own_user`` and root on this machine are.
        """
        self.asked_s = time.monotonic()
        """When a host asked last; at first, when the server was made."""
        self._table = table
        self._own_user = own_user
        self._is_secure = is_secure
        self._shelf: dict[str, tuple[ArrivingCopy, float]] = {}
        self._pulls: dict[str, dict[str, float]] = {}
        """The time until which a host counts as one that pulls a copy, by the copy's digest and
        the host's identity."""
        self._allowed: WeakKeyDictionary[asyncio.BaseTransport, bool] = WeakKeyDictionary()
        self._web = _Counted(
            self._answer,
            access_log=None,
            keepalive_timeout=15.0,
            max_line_size=2048,
            max_field_size=4096,
        )
        self._server: asyncio.Server | None = None
        table.receivers_of = self.receivers

    async def listen(self, address: HostAddress, security: ssl.SSLContext | None) -> None:
        """Listen at ``address``. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(
            self._connected,
            address.host,
            address.port,
            ssl=security,
            ssl_handshake_timeout=HANDSHAKE_S if security is not None else None,
        )

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._web.shutdown(0.1)
        await asyncio.gather(*self._table.shelving.values(), return_exceptions=True)
        for copy, _ in self._shelf.values():
            copy.close()
        self._shelf.clear()

    def receivers(self, sha256: str) -> int:
        """Return how many hosts are pulling the copy now."""
        now_s = time.monotonic()
        pulls = self._pulls.get(sha256, {})
        for identity in [each for each, until_s in pulls.items() if until_s < now_s]:
            del pulls[identity]
        return len(pulls)

    def tidy(self) -> None:
        """Close shelved copies that no host has asked for within ``SHELF_S``, and those that a
        local process has opened since; forget hosts that pull no more."""
        self._pulls = {each: pulls for each, pulls in self._pulls.items() if self.receivers(each)}
        now_s = time.monotonic()
        for sha256, (copy, used_s) in list(self._shelf.items()):
            is_due = now_s - used_s > SHELF_S or sha256 in self._table.fetches
            if is_due and not self.receivers(sha256):
                del self._shelf[sha256]
                copy.close()

    def _connected(self) -> asyncio.Protocol:
        return _Refusal() if self._web.count() >= MOST_CONNECTIONS else self._web()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method != "GET":
            return web.Response(status=405)
        if not self._is_allowed(request):
            return web.Response(status=403)
        self.asked_s = time.monotonic()
        match = _PATH.fullmatch(request.path)
        if match is None:
            return web.Response(status=404)
        sha256, manifest, number = match.groups()
        if manifest is not None:
            copy = await self._copy(sha256)
            return web.Response(status=404) if copy is None else web.Response(body=copy.text)
        if number is not None:
            return await self._send(request, sha256, int(number))
        return await self._report(request, sha256)

    def _is_allowed(self, request: web.BaseRequest) -> bool:
        """Whether the connection is secure, or its client is a process of this user or of root.

        The user is looked up once for each connection.
        """
        transport = request.transport
        if self._is_secure or transport is None:
            return transport is not None
        is_own = self._allowed.get(transport)
        if is_own is None:
            name, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
            user = user_of_connection(peer, name)
            is_own = self._allowed[transport] = user in (self._own_user, 0)
            if not is_own:
                LOGGER.warning(f"a process of user {user} was refused a copy")
        return is_own

    async def _report(self, request: web.BaseRequest, sha256: str) -> web.Response:
        since = request.query.get("since", "")
        is_coming = sha256 in self._table.opening
        deadline_s = time.monotonic() + (HELD_S if since or is_coming else 0.0)
        while True:
            bell = self._table.opened.rung()
            fetch = self._table.fetches.get(sha256)
            if fetch is not None:
                bell = fetch.arrived.rung()
            copy = await self._copy(sha256)
            here = 0 if copy is None else fetch.here if fetch is not None else copy.here()
            left_s = deadline_s - time.monotonic()
            count = here.bit_count()
            if left_s <= 0 or (copy is not None and since != str(count)):
                break
            await asyncio.wait([bell], timeout=left_s)
        if copy is None:
            return web.Response(status=404)
        receivers = self.receivers(sha256)
        supply = self._table.supply_of(sha256)
        if supply is not None:
            report = supply.report(receivers)
        else:
            report = PeerReport(
                identity=self._table.identity,
                here=here,
                is_fetching=False,
                next=(),
                bytes_per_s=0.0,
                receivers=receivers,
                path=(),
            )
        return web.json_response(write_report(report, copy.layout, count))

    async def _send(
        self, request: web.BaseRequest, sha256: str, number: int
    ) -> web.StreamResponse:
        copy = await self._copy(sha256)
        if copy is None or number >= len(copy.manifest.files):
            return web.Response(status=404)
        size = copy.manifest.files[number].size
        match = _RANGE.fullmatch(request.headers.get("Range", ""))
        begin, end = (int(match[1]), int(match[2]) + 1) if match else (0, size)
        if not begin < end <= size:
            return web.Response(status=416, headers={"Content-Range": f"bytes */{size}"})
        headers = {"Content-Range": f"bytes {begin}-{end - 1}/{size}"}
        response = web.StreamResponse(status=206 if match else 200, headers=headers)
        response.enable_chunked_encoding()
        try:
            await response.prepare(request)
            await self._stream(request, response, sha256, copy, number, begin, end)
        except ConnectionError:
            pass  # the client has turned to another source
        except asyncio.TimeoutError:  # it reads nothing: what is left would wait as long again
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _stream(
        self,
        request: web.BaseRequest,
        response: web.StreamResponse,
        sha256: str,
        copy: ArrivingCopy,
        number: int,
        begin: int,
        end: int,
    ) -> None:
        """Send the bytes from ``begin`` to ``end``, as far as they arrive in time. Raises
        ConnectionError."""
        if request.transport is not None:
            request.transport.set_write_buffer_limits(_BUFFERED_BYTES)
        identity = request.headers.get(IDENTITY_HEADER, "")[:256] or str(request.remote)
        async for data in arriving_bytes(
            copy, lambda: self._table.fetches.get(sha256), number, begin, end
        ):
            self._pulls.setdefault(sha256, {})[identity] = time.monotonic() + PULLS_S
            await asyncio.wait_for(response.write(data), STUCK_S)
            if _has_gone(request):
                return
        await response.write_eof()

    async def _copy(self, sha256: str) -> ArrivingCopy | None:
        """Return the copy, opened unless it already is; None if there is no usable one."""
        fetch = self._table.fetches.get(sha256)
        if fetch is not None:
            return None if fetch.copy.is_refused else fetch.copy
        if sha256 not in self._shelf:
            if sha256 in self._table.opening:  # by a local process: one opening compares it
                return None
            await asyncio.shield(self._shelving(sha256))
            if sha256 not in self._shelf:
                return None
        copy, _ = self._shelf[sha256]
        self._shelf[sha256] = copy, time.monotonic()
        return None if copy.is_refused else copy

    def _shelving(self, sha256: str) -> asyncio.Task[None]:
        """Return the task that puts the copy on the shelf, if it is usable: all that ask for it
        meanwhile wait for one."""
        openings = self._table.shelving

        async def shelve() -> None:
            try:
                copy = await asyncio.to_thread(open_compared, self._table.base / sha256)
                if copy is not None:
                    self._shelf[sha256] = copy, time.monotonic()
            finally:
                del openings[sha256]

        if sha256 not in openings:
            openings[sha256] = asyncio.create_task(shelve())
        return openings[sha256]


def _has_gone(request: web.BaseRequest) -> bool:
    return request.transport is None or request.transport.is_closing()


async def arriving_bytes(
    copy: ArrivingCopy, fetch: Callable[[], Fetch | None], number: int, begin: int, end: int
) -> AsyncIterator[bytes | bytearray]:
    """Yield bytes of a file, in order, until ``end``, no more have arrived for ``HELD_S``, or the
    copy is closed, since no process of this host uses it any more.

    ``fetch``: returns the copy's current fetch; None if the copy is not being fetched.
    """
    offset = begin
    while offset < end:
        here_to = await _here_to(copy, fetch, number, offset)
        until = min(here_to, end, offset + _READ_BYTES)
        if until <= offset:
            return
        data: bytes | bytearray | None = copy.read_now(number, offset, until - offset)
        if data is None:
            try:
                data = await asyncio.to_thread(copy.read, number, offset, until - offset)
            except OSError:
                if copy.is_closed:
                    return
                raise
        yield data
        offset += len(data)


async def _here_to(
    copy: ArrivingCopy, fetch: Callable[[], Fetch | None], number: int, offset: int
) -> int:
    """Return the end of the bytes present from ``offset`` on.

    If there are none and the copy is being fetched, first wait for some, up to ``HELD_S``.
    """
    chunk_bytes, file = copy.manifest.chunk_bytes, copy.layout.file(number)
    first, clock = offset // chunk_bytes, asyncio.get_running_loop().time
    deadline_s = clock() + HELD_S
    while True:
        present = fetch()
        if copy.is_closed:  # its last user here has gone
            return offset
        here = present.here if present is not None else copy.here()
        bits = (here >> (file.start + first)) & ((1 << (file.chunks - first)) - 1)
        chunks = ((bits + 1) & ~bits).bit_length() - 1
        left_s = deadline_s - clock()
        if chunks or left_s <= 0 or present is None:
            return min((first + chunks) * chunk_bytes, copy.manifest.files[number].size)
        await present.arrived.wait(left_s)


class _Counted(web.Server):
    """A server that counts connections from their acceptance on, before they speak HTTP."""

    def __init__(self, handler: Any, **settings: Any) -> None:
        super().__init__(handler, **settings)
        self._accepted_s: dict[object, float] = {}

    def __call__(self) -> Any:
        handler = super().__call__()
        self._accepted_s[handler] = time.monotonic()
        return handler

    def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
        self._accepted_s.pop(handler, None)
        super().connection_made(handler, transport)

    def count(self) -> int:
        oldest_s = time.monotonic() - HANDSHAKE_S - 1.0  # of those no handshake is going on
        accepted = self._accepted_s.items()
        self._accepted_s = {each: at_s for each, at_s in accepted if at_s > oldest_s}
        return len(self._accepted_s) + len(self.connections)


class _Refusal(asyncio.Protocol):
    """The protocol of a connection over the limit: it is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


_ESTABLISHED = "01"


def user_of_connection(client: tuple[Any, ...], server: tuple[Any, ...]) -> int | None:
    """Return the user of the local socket at ``client`` that is connected to ``server``; None if
    the kernel lists no such established connection.

    Both are addresses as sockets report them, host and port first. Ports alone would name another
    connection's user: the kernel lists sockets that wait after their end (TIME_WAIT) as root's.
    """
    for name in ("tcp", "tcp6"):
        wanted = [_listed_address(client, name), _listed_address(server, name), _ESTABLISHED]
        try:
            lines = Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[1:4] == wanted:
                return int(fields[7])
    return None


def _listed_address(address: tuple[Any, ...], name: str) -> str:
    """Return an address as the kernel's list ``tcp`` or ``tcp6`` has it: words of four bytes in
    this machine's order. An IPv4 address in ``tcp6`` is of a socket for both versions."""
    host = ipaddress.ip_address(address[0].partition("%")[0])
    if name == "tcp6" and host.version == 4:
        host = ipaddress.ip_address(f"::ffff:{host}")
    mapped = getattr(host, "ipv4_mapped", None)
    packed = mapped.packed if name == "tcp" and mapped is not None else host.packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{address[1]:04X}"
