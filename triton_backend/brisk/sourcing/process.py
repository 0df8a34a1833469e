"""The courier's process: it starts the courier's parts, and ends when they are idle."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from brisk.copies.connection import MOST_LINE_BYTES
from brisk.copies.remote import remote_directory
from brisk.paths import listed
from brisk.settings import (
    HostAddress,
    cache_limit_bytes,
    peer_keys,
    peer_listen,
    peers,
    remote_urls,
    runtime_directory,
)
from brisk.sourcing.log import LOGGER
from brisk.sourcing.service import CourierService
from brisk.sourcing.serving import CopyServer
from brisk.sourcing.sources.certificates import Security, read_keys
from brisk.sourcing.sources.downloads import Web
from brisk.sourcing.sources.peers import PeerHost
from brisk.sourcing.table import CopyTable

IDLE_S = 30.0
"""The time without a connection after which a courier that serves no peers ends."""

SERVING_IDLE_S = 600.0
"""The time after which a courier that serves peers ends, since a peer last asked, a connection was
open, or a runtime was alive."""

WRITERS = 4
"""The most threads that open and make copies, and verify and write chunks."""

COMPARERS = 4
"""The most threads that compare whole copies with their digests, and publish forms: others, since
that takes long, and neither an opening nor a chunk waits for it."""

ENDING_S = 5.0
"""The longest time that a courier takes to end: clients wait for its end, to start another one."""

_LOOK_S = 0.5


class CourierSettings(NamedTuple):
    """The courier's settings, from the environment."""

    peers: tuple[HostAddress, ...]
    listen: HostAddress | None
    security: Security | None
    urls: tuple[str, ...] | None
    limit_bytes: int | None


def read_settings(environment: Mapping[str, str] = os.environ) -> CourierSettings:
    """Read the settings. Raises InvalidConfigurationError."""
    keys = peer_keys(environment)
    return CourierSettings(
        peers=peers(environment),
        listen=peer_listen(environment),
        security=None if keys is None else read_keys(keys),
        urls=remote_urls(environment),
        limit_bytes=cache_limit_bytes(environment),
    )


async def run(place: Path, settings: CourierSettings) -> None:
    """Run the courier at the socket ``place`` until it is idle or gets SIGTERM or SIGINT. Raises
    OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(str(place))
    finally:
        os.umask(mask)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    identity = _identity(settings.listen)
    web = Web()
    security = settings.security
    inner_web = Web(None if security is None else security.client, is_proxied=False)
    others = [
        PeerHost(str(each), inner_web, identity, is_secure=security is not None)
        for each in settings.peers
    ]
    with (
        ThreadPoolExecutor(WRITERS, thread_name_prefix="brisk-courier") as executor,
        ThreadPoolExecutor(COMPARERS, thread_name_prefix="brisk-comparing") as comparing,
    ):
        table = CopyTable(
            base=remote_directory(),
            identity=identity,
            web=web,
            executor=executor,
            comparing=comparing,
            peers=others,
            allowed_urls=settings.urls,
            limit_bytes=settings.limit_bytes,
        )
        service = CourierService(table, os.geteuid())
        local = await asyncio.start_unix_server(
            service.serve, sock=listener, limit=MOST_LINE_BYTES
        )
        server = None
        if settings.listen is not None:
            server = await _serving(
                table, settings.listen, None if security is None else security.server
            )
        await _until_idle(table, service, server, ended)
        _end_within(ENDING_S)
        local.close()
        await table.close()
        if server is not None:
            await server.close()
        await web.close()
        await inner_web.close()


def _end_within(seconds: float) -> None:
    """End the process after so many seconds, even if its threads still compare, sync or wait.

    That is as safe as a crash: only chunks that are written count as here. A courier that is idle
    has no such threads.
    """
    timer = threading.Timer(seconds, os._exit, (0,))
    timer.daemon = True
    timer.start()


async def _serving(
    table: CopyTable, address: HostAddress, security: ssl.SSLContext | None
) -> CopyServer | None:
    server = CopyServer(table, os.geteuid(), is_secure=security is not None)
    try:
        await server.listen(address, security)
    except OSError as error:  # models are fetched all the same
        LOGGER.error(f"copies are not served at {address} (BRISK_PEER_LISTEN): {error}")
        return None
    LOGGER.info(f"copies are served at {address}")
    return server


async def _until_idle(
    table: CopyTable, service: CourierService, server: CopyServer | None, ended: asyncio.Event
) -> None:
    used_s = time.monotonic()
    while not ended.is_set():
        now_s = time.monotonic()
        if service.is_used or table.is_at_work or (server is not None and is_runtime_there()):
            used_s = now_s
        if server is not None:
            server.tidy()
            if now_s - max(used_s, server.asked_s) > SERVING_IDLE_S:
                return
        elif now_s - used_s > IDLE_S:
            return
        try:
            await asyncio.wait_for(ended.wait(), _LOOK_S)
        except (asyncio.TimeoutError, TimeoutError):
            continue


def is_runtime_there() -> bool:
    """Whether a runtime is alive that would find this courier: it holds a lock in its directory
    (``brisk.protocol.runtime_paths``).

    If the kernel's list of locks cannot be read, a lock file counts as held.
    """
    inodes = set()
    for folder in listed(runtime_directory()):
        with contextlib.suppress(OSError):  # no runtime's, or of one that has just removed it
            inodes.add(str((folder / "lock").stat().st_ino))
    try:
        lines = Path("/proc/locks").read_text().splitlines() if inodes else []
    except OSError:
        return bool(inodes)  # the list cannot be read
    held = (line.split() for line in lines if " FLOCK " in line)
    return any(fields[5].rpartition(":")[2] in inodes for fields in held)


def _identity(listen: HostAddress | None) -> str:
    """Return this courier's unique identity for peers; identities sort by host name."""
    return f"{socket.gethostname()}:{listen.port if listen else 0}/{secrets.token_hex(8)}"
