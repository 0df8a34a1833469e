"""Which URLs and addresses are asked: pure rules, and the look-up that obeys them.

Whoever writes to a model repository names URLs that this machine asks. What they get to see of it
is whether the bytes have a digest that they named; where redirects lead is the business of whoever
answers at the URL, and must not be this machine's own network.
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

from brisk.errors import InvalidModelError
from brisk.sourcing.sources.failures import MissingError

MOST_REDIRECTS = 3
_UNASKED = ("https", "http", "s3")
"""Schemes that entries may name where ``BRISK_REMOTE_URLS`` says nothing."""

_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
"""Addresses that carry one of IPv4 (NAT64)."""

_USER = re.compile("//[^/]*@")
_SETTING = "BRISK_REMOTE_URLS"


def shown_url(url: str) -> str:
    """Without query, user and password: what may be written down."""
    parts = _split(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def file_url(manifest_url: str, name: str) -> str:
    """Of a file that a manifest names, beside it; what stands behind a ``?`` holds for it, too."""
    parts = _split(manifest_url)
    folder = parts.path.rpartition("/")[0]
    return urlunsplit((parts.scheme, parts.netloc, f"{folder}/{quote(name)}", parts.query, ""))


def check_url(url: str, allowed: Sequence[str] | None) -> None:
    """Raises InvalidModelError where an entry may not name the URL. ``allowed``: prefixes, as
    ``BRISK_REMOTE_URLS`` has them; None: it is not set."""
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
    """Where an answer to ``url`` leads, as the ``count``-th of them, from 1.

    To https, or by the scheme that it has. Raises MissingError where nobody follows there.
    """
    where = f"{shown_url(url)} redirects"
    if count > MOST_REDIRECTS:
        raise MissingError(f"{where} more than {MOST_REDIRECTS} times")
    if not location:
        raise MissingError(f"{where} to nowhere")
    try:
        target = urljoin(url, location)
        parts = _split(target)
    except (ValueError, InvalidModelError) as error:
        raise MissingError(f"{where} to what is no URL") from error
    if parts.scheme not in {"https", _split(url).scheme} or not parts.netloc:
        raise MissingError(f"{where} to {shown_url(target)}; expected a https:// URL")
    return target


def is_inside(address: str) -> bool:
    """Whether an address is none of the public network: private, loopback, of the link."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return True  # what it is nobody can tell
    if isinstance(found, ipaddress.IPv4Address):
        return not found.is_global
    carried = found.ipv4_mapped or found.sixtofour
    if found in _TRANSLATED:
        carried = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    if carried is not None:
        return not carried.is_global
    return not found.is_global or found.is_site_local or found.teredo is not None


async def leads_inside(url: str) -> bool:
    """Whether a URL's host has such an address. Raises OSError where it has none at all."""
    parts = _split(url)
    resolver = ThreadedResolver()
    found = await resolver.resolve(parts.hostname or "", parts.port or 443, socket.AF_UNSPEC)
    return any(is_inside(each["host"]) for each in found)


class OutwardResolver(AbstractResolver):
    """Addresses of hosts that redirects lead to: those that are connected to are checked here,
    and not looked up again."""

    def __init__(self) -> None:
        self._resolver = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        for each in found:
            check_outward(each["host"], host)
        return found

    async def close(self) -> None:
        await self._resolver.close()


def check_outward(address: str, host: str) -> None:
    """Raises OSError where the address is one of an inner network."""
    if is_inside(address):
        raise OSError(f"a redirect leads to {host}, whose address {address} is not public")


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _split(url: str) -> Any:
    """Raises InvalidModelError where the text is no URL."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # it is parsed now
    except ValueError as error:
        shown = _USER.sub("//", url.partition("?")[0])
        raise InvalidModelError(f"{shown!r:.120} is no URL: {error}") from error
    return parts
