"""The rules of which URLs and addresses may be fetched from (pure), and a resolver that obeys
them.

A writer to a model repository names URLs that this machine fetches. The writer learns only whether
the bytes have the named digest. The server at the URL decides where redirects lead; they must not
lead into this machine's own network.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit, urlunsplit

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver
from yarl import URL

from brisk.errors import InvalidModelError
from brisk.sourcing.sources.failures import MissingError

MOST_REDIRECTS = 3
_UNASKED = ("https", "http", "s3")
"""The schemes that entries may name unless ``BRISK_REMOTE_URLS`` is set."""

_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
"""The IPv6 addresses that carry an IPv4 address (NAT64)."""

_USER = re.compile("//[^/]*@")
_SETTING = "BRISK_REMOTE_URLS"


def shown_url(url: str) -> str:
    """Return the URL without query, user and password, fit for logs and messages."""
    parts = _split(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def file_url(manifest_url: str, name: str) -> str:
    """Return the URL of a file that a manifest names: in its folder, with its URL's query."""
    parts = _split(manifest_url)
    folder = parts.path.rpartition("/")[0]
    return urlunsplit((parts.scheme, parts.netloc, f"{folder}/{quote(name)}", parts.query, ""))


def check_url(url: str, allowed: Sequence[str] | None) -> None:
    """Raise InvalidModelError if an entry may not name the URL.

    ``allowed``: URL prefixes from ``BRISK_REMOTE_URLS``; None if it is not set.
    """
    parts = _split(url)
    if not parts.netloc and parts.scheme != "file":
        raise InvalidModelError(f"'{shown_url(url)}' names no host")
    if any(part in (".", "..") for part in unquote(parts.path).replace("\\", "/").split("/")):
        raise InvalidModelError(f"'{shown_url(url)}' leads upwards; expected a path without '..'")
    if allowed is None:
        if parts.scheme in _UNASKED:
            return
        expected = "https://, http:// and s3:// are, others where BRISK_REMOTE_URLS names them"
        raise InvalidModelError(f"'{shown_url(url)}' is not allowed: {expected}")
    if not any(_begins_with(parts, _split(prefix)) for prefix in allowed):
        raise InvalidModelError(
            f"'{shown_url(url)}' is not allowed: {_SETTING} allows {', '.join(allowed)}"
        )


def _begins_with(parts: SplitResult, prefix: SplitResult) -> bool:
    if parts.scheme != prefix.scheme:
        return False
    if not prefix.netloc and not prefix.path.strip("/"):
        return True
    if parts.netloc.rpartition("@")[2] != prefix.netloc:
        return False
    folder = prefix.path.rstrip("/")
    return parts.path == folder or parts.path.startswith(folder + "/")


def redirected(url: str, location: str, count: int) -> str:
    """Return the target URL of the ``count``-th redirect, from 1, which is an answer to ``url``.

    It is as aiohttp requests it, whose full-width digits of a host, for one, are digits: the
    address that is checked is then the one that is connected to. Redirects may go to https, or to
    the scheme of ``url``. Raises MissingError if the redirect is not followed.
    """
    where = f"{shown_url(url)} redirects"
    if count > MOST_REDIRECTS:
        raise MissingError(f"{where} more than {MOST_REDIRECTS} times")
    if not location:
        raise MissingError(f"{where} to nowhere")
    try:
        target = str(URL(urljoin(url, location)))
        parts = _split(target)
    except (ValueError, InvalidModelError) as error:
        raise MissingError(f"{where} to what is no URL") from error
    if parts.scheme not in {"https", _split(url).scheme} or not parts.netloc:
        raise MissingError(f"{where} to {shown_url(target)}; expected a https:// URL")
    return target


def is_inside(address: str) -> bool:
    """Whether an address is not public (private, loopback, link-local), or no address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return True  # unknown, so not public
    if isinstance(parsed, ipaddress.IPv4Address):
        return not parsed.is_global
    carried = parsed.ipv4_mapped or parsed.sixtofour
    if parsed in _TRANSLATED:
        carried = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
    if carried is not None:
        return not carried.is_global
    return not parsed.is_global or parsed.is_site_local or parsed.teredo is not None


async def leads_inside(url: str) -> bool:
    """Whether a URL's host has an address that is not public. Raises OSError if it has none."""
    parts = _split(url)
    resolver = ThreadedResolver()
    resolved = await resolver.resolve(parts.hostname or "", parts.port or 443, socket.AF_UNSPEC)
    return any(is_inside(each["host"]) for each in resolved)


class OutwardResolver(AbstractResolver):
    """A resolver of redirects' hosts, which refuses addresses that are not public.

    The connection uses the checked addresses: they are not looked up again.
    """

    def __init__(self) -> None:
        self._resolver = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        resolved = await self._resolver.resolve(host, port, family)
        for each in resolved:
            check_outward(each["host"], host)
        return resolved

    async def close(self) -> None:
        await self._resolver.close()


def check_outward(address: str, host: str) -> None:
    """Raise OSError if the address is not public."""
    if is_inside(address):
        raise OSError(f"a redirect leads to {host}, whose address {address} is not public")


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _split(url: str) -> Any:
    """Parse the URL. Raises InvalidModelError if the text is no URL."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # it is parsed now
    except ValueError as error:
        shown = _USER.sub("//", url.partition("?")[0])
        said = re.sub("'.*@", "'", str(error))  # it may quote user and password, too
        raise InvalidModelError(f"{shown!r:.120} is no URL: {said}") from error
    return parts
