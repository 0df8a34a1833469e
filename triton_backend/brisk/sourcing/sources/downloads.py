"""Downloads over HTTP: ranges of files, as streams that may end early, and whole small files."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import aiohttp
from aiohttp.helpers import get_env_proxy_for_url
from yarl import URL

from brisk.sourcing.sources import addresses
from brisk.sourcing.sources.failures import MissingError, SourceError, WrongBytesError

READ_BYTES = 1 << 20
"""The bytes of a connection that are buffered while no task reads them; also the largest piece
that is read of a local file."""

RECORD_BYTES = 17 << 10
"""The size of the largest TLS record with its framing: so many bytes may have been received but
not yet be decoded."""

SILENCE_S = 10.0
"""The longest wait of a small download for its connection, and for each further byte. Ranges have
no such limit: who reads them looks at how long they take (``policies.patience``)."""

LEAST_BYTES_PER_S = 10_000
"""The rate below which a small download that has taken longer than ``SILENCE_S`` is given up."""

_MOST_DIGITS = 20
"""The most digits of a size in bytes; Python refuses to read numbers of some thousand digits."""

_CONNECT_S = 10.0
_REDIRECTS = (301, 302, 303, 307, 308)
_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "brisk"}


class RangeAnswer(NamedTuple):
    """An HTTP server's answer to a request for a range."""

    response: aiohttp.ClientResponse
    offset: int
    """The place in the file of the content's first byte; 0 if the server does not support
    ranges."""
    is_ranged: bool
    """Whether the server supports ranges."""


class Web:
    """An HTTP client that keeps connections for later requests. Used from one event loop only."""

    def __init__(self, security: ssl.SSLContext | None = None, *, is_proxied: bool = True) -> None:
        """Make a client without connections.

        ``security``: the TLS context; None for the certificates that the machine trusts.
        ``is_proxied``: whether to use the proxy that environment variables name.
        """
        self._security = security
        self._is_proxied = is_proxied
        self._sessions: dict[tuple[bool, bool], aiohttp.ClientSession] = {}

    def _session(self, target: str, *, is_outward: bool) -> aiohttp.ClientSession:
        """Return the session for ``target``, opened on first use.

        ``is_outward``: the session connects only to public addresses.
        """
        is_secure = urlsplit(target).scheme == "https"
        session = self._sessions.get((is_outward, is_secure))
        if session is None:
            session = self._sessions[is_outward, is_secure] = self._opened(is_outward, is_secure)
        return session

    def _opened(self, is_outward: bool, is_secure: bool) -> aiohttp.ClientSession:
        if is_secure and self._security is None:
            self._security = ssl.create_default_context()  # reads all that the machine trusts
        connector = aiohttp.TCPConnector(
            limit=0,
            resolver=addresses.OutwardResolver() if is_outward else None,
            ssl=self._security or True,
            use_dns_cache=not is_outward,
        )
        return aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=_HEADERS,
            read_bufsize=READ_BYTES,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            trust_env=self._is_proxied,
        )

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()

    @asynccontextmanager
    async def get(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        follows: bool = True,
        silence_s: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the answer to a GET; redirects are followed as ``addresses`` allows.

        ``silence_s``: the longest wait for the connection, for the answer's header from then on,
        and for each further byte; None: no limit. Raises SourceError if there is no answer, also
        while the caller reads it.
        """
        count, is_outward, target = 0, False, url
        patience = aiohttp.ClientTimeout(
            total=None, connect=silence_s, sock_connect=_CONNECT_S, sock_read=silence_s
        )
        while True:
            is_direct = not self._goes_through_a_proxy(target)
            session = self._session(target, is_outward=is_outward and is_direct)
            asked = session.get(target, headers=headers, allow_redirects=False, timeout=patience)
            try:
                # a header that trickles is never silent
                most_s = None if silence_s is None else 2 * silence_s
                response = await asyncio.wait_for(asked, most_s)
            except (aiohttp.ClientError, OSError, ValueError, asyncio.TimeoutError) as error:
                raise SourceError(f"{addresses.shown_url(target)}: {_said(error)}") from error
            if not follows or response.status not in _REDIRECTS:
                break
            response.close()
            count += 1
            target = addresses.redirected(target, response.headers.get("Location", ""), count)
            if not await _leads_inside(url):
                is_outward = True
                await self._check_outward(url, target)
        try:
            yield response
        except (aiohttp.ClientError, OSError) as error:
            raise SourceError(f"{addresses.shown_url(target)}: {_said(error)}") from error
        finally:
            response.close() if not response.content.is_eof() else response.release()

    async def _check_outward(self, url: str, target: str) -> None:
        """Raise SourceError if ``target``, where the public ``url`` redirects, is not public.

        The resolver of a direct connection looks names up. A proxy does so itself: before it is
        asked, what the name means on this machine is checked, if it means anything.
        """
        host = urlsplit(target).hostname or ""
        is_named = not addresses.is_address(host)
        if is_named and not self._goes_through_a_proxy(target):
            return
        if await _leads_inside(target):
            raise SourceError(
                f"{addresses.shown_url(url)} redirects to {host}, which is not public"
            )

    def _goes_through_a_proxy(self, target: str) -> bool:
        """Whether the environment names a proxy for ``target``, as the sessions understand it."""
        if not self._is_proxied:
            return False
        try:
            get_env_proxy_for_url(URL(target))
        except (LookupError, ValueError):
            return False
        return True

    @asynccontextmanager
    async def get_range(
        self,
        url: str,
        offset: int,
        size: int,
        total: int,
        headers: Mapping[str, str] | None = None,
        *,
        follows: bool = True,
    ) -> AsyncIterator[RangeAnswer]:
        """Yield an answer with bytes of a file of ``total`` bytes; it may begin before ``offset``.

        Raises SourceError, MissingError, and WrongBytesError if the file has another size.
        """
        ranged = {**(headers or {}), "Range": f"bytes={offset}-{offset + size - 1}"}
        async with self.get(url, ranged, follows=follows) as response:
            check_status(response, url)
            shown = addresses.shown_url(url)
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise SourceError(f"{shown} sends compressed bytes")
            if response.status == 206:
                begin, stated = _content_range(response.headers.get("Content-Range", ""), shown)
                if stated not in (None, total):
                    raise WrongBytesError(f"{shown} has {stated} bytes, the manifest says {total}")
                if begin > offset:
                    raise SourceError(f"{shown} sends bytes from {begin} instead of {offset}")
                yield RangeAnswer(response, begin, True)
                return
            length = response.content_length
            if length not in (None, total):
                raise WrongBytesError(f"{shown} has {length} bytes, the manifest says {total}")
            yield RangeAnswer(response, 0, False)

    async def get_small(self, url: str, most: int, *, follows: bool = True) -> bytes:
        """Return a file of at most ``most`` bytes. Raises SourceError."""
        async with self.get(url, follows=follows, silence_s=SILENCE_S) as response:
            check_status(response, url)
            data = await _beginning(response, most + 1, addresses.shown_url(url))
            if len(data) > most:
                raise SourceError(f"{addresses.shown_url(url)} has more than {most} bytes")
            return data

    async def get_beginning(self, url: str, most: int) -> bytes:
        """Return the first ``most`` bytes of a file, or all of it. Raises SourceError."""
        ranged = {"Range": f"bytes=0-{most - 1}"}
        async with self.get(url, ranged, silence_s=SILENCE_S) as response:
            check_status(response, url)
            return await _beginning(response, most, addresses.shown_url(url))


async def _beginning(response: aiohttp.ClientResponse, most: int, shown: str) -> bytes:
    """Return the first ``most`` bytes of an answer, or all of it. Raises SourceError if they come
    too slowly."""
    began_s = time.monotonic()
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) >= most:
            break
        if time.monotonic() - began_s > SILENCE_S + len(data) / LEAST_BYTES_PER_S:
            raise SourceError(f"{shown}: only {len(data)} bytes came in {SILENCE_S:.0f} s")
    return bytes(data[:most])


class ArrivingPieces:
    """An iterator over an answer's bytes as they arrive."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._content = response.content
        connection = response.connection
        self._transport = None if connection is None else connection.transport
        self._least = 1

    def close(self) -> None:
        """Reset the connection's wake-up size, so that later requests can use it."""
        self.expect(0)

    def expect(self, least: int) -> None:
        """Set the least bytes worth a wake-up, as ``Pieces.expect`` describes.

        The kernel then does not wake this process for fewer, with or without TLS, except at the
        end of the connection.
        """
        least = max(least - RECORD_BYTES, 1)
        if least == self._least or self._transport is None or self._transport.is_closing():
            return
        self._least = least
        connected = self._transport.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)

    def __aiter__(self) -> ArrivingPieces:
        return self

    async def __anext__(self) -> bytes:
        piece = await self._content.readany()
        if not piece:
            raise StopAsyncIteration
        return piece


def check_status(response: aiohttp.ClientResponse, url: str) -> None:
    """Raise MissingError if the file does not exist, WrongBytesError if it is too short for the
    range, SourceError for any other failure."""
    if response.status in (200, 206):
        return
    text = f"{addresses.shown_url(url)} answers {response.status} {response.reason or ''}".strip()
    if response.status == 416:
        raise WrongBytesError(f"{text}: the file is shorter than the manifest says")
    if response.status in (403, 404, 410):
        raise MissingError(text)
    raise SourceError(text)


def _content_range(text: str, shown: str) -> tuple[int, int | None]:
    """Return the first byte's offset and the file's size from a Content-Range header; a size of
    None is not stated. Raises SourceError."""
    unit, _, rest = text.partition(" ")
    places, _, total = rest.partition("/")
    begin, _, _ = places.partition("-")
    if unit != "bytes" or not _is_size(begin) or not (total == "*" or _is_size(total)):
        raise SourceError(f"{shown} answers with the range {text!r:.60}")
    return int(begin), None if total == "*" else int(total)


def _is_size(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


async def _leads_inside(url: str) -> bool:
    try:
        return await addresses.leads_inside(url)
    except OSError:
        return False


def _said(error: Exception) -> str:
    """Return an error's message. Some of aiohttp's are empty, some contain the whole URL: these
    are replaced."""
    if isinstance(error, asyncio.TimeoutError):  # some name the whole URL
        return "no byte came in time"
    if isinstance(error, aiohttp.ClientConnectorError):
        return str(error.os_error) or type(error.os_error).__name__
    if isinstance(error, aiohttp.InvalidURL):
        return "it is no URL"
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy answers {error.status} {error.message}".rstrip()
    if isinstance(error, aiohttp.ClientResponseError):  # its text names the whole URL
        what, _, _ = error.message.partition("\n")
        return f"the answer is no HTTP: {what}"
    return str(error) or type(error).__name__
