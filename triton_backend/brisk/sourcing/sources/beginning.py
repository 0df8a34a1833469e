"""The first bytes of a copy: its manifest, and concurrently the beginning of its head."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

from brisk.copies.manifest import read_manifest
from brisk.errors import BriskError, InvalidModelError, UnavailableError
from brisk.sourcing.log import LOGGER
from brisk.sourcing.policies.patience import pause_s
from brisk.sourcing.sources.failures import MissingError, SourceError
from brisk.sourcing.sources.peers import PeerCopy
from brisk.sourcing.sources.registry import Registry

OPEN_PATIENCE_S = 20.0
"""The time without anything new after which opening a copy fails. Waits for bytes of an open copy
go on."""

ALONE_S = 0.05
"""The head start of the registry before a peer is also asked for the manifest, and of each peer
before the next one, unless it fails: a connection, with its handshake, takes longer than most
registries do, and the manifest of a large model, megabytes, would come from all hosts at once."""

_HEAD_S = 2.0
"""The longest wait for the head once the manifest is here; after it the head is requested again,
as the manifest says."""

_SHORT_BYTES = 1 << 16
"""The largest manifest that is parsed in the event loop; a thread parses larger ones."""


async def obtain(
    registry: Registry, peers: Sequence[PeerCopy], sha256: str
) -> tuple[bytes, bytes]:
    """Return the manifest, from the first source that gives it, and the head's first bytes from
    the registry.

    These bytes are unverified. For a small model they are half of what a start needs, at no extra
    time. They are empty if there are peers, or they take too long. Raises InvalidModelError if the
    registry has another manifest or none, and no peer has it; UnavailableError if no source gives
    it for ``OPEN_PATIENCE_S``.
    """
    head = None if peers else asyncio.create_task(_head(registry))
    try:
        text = await _obtain_manifest(registry, peers, sha256)
        return text, b"" if head is None else await asyncio.wait_for(head, _HEAD_S)
    except asyncio.TimeoutError:
        return text, b""
    finally:
        if head is not None:
            head.cancel()
            await asyncio.gather(head, return_exceptions=True)


async def _head(registry: Registry) -> bytes:
    try:
        return await registry.head()
    except SourceError:
        return b""


async def _obtain_manifest(registry: Registry, peers: Sequence[PeerCopy], sha256: str) -> bytes:
    began_s, failures = time.monotonic(), 0
    while True:
        sources: list[Registry | PeerCopy] = [registry, *random.sample(peers, len(peers))]
        tasks: list[asyncio.Task[bytes]] = []
        pending: set[asyncio.Task[bytes]] = set()
        problems: list[BriskError] = []
        try:
            while pending or len(tasks) < len(sources):
                if len(tasks) < len(sources):
                    tasks.append(asyncio.create_task(_manifest(sources[len(tasks)], sha256)))
                    pending.add(tasks[-1])
                patience_s = ALONE_S if len(tasks) < len(sources) else None
                done, pending = await asyncio.wait(
                    pending, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    try:
                        return await task
                    except (SourceError, InvalidModelError) as error:
                        problems.append(error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        text = "; ".join(dict.fromkeys(map(str, problems)))
        is_final = isinstance(tasks[0].exception(), (InvalidModelError, MissingError))
        if is_final:
            raise InvalidModelError(text)
        if time.monotonic() - began_s > OPEN_PATIENCE_S:
            raise UnavailableError(text)
        if not failures:
            LOGGER.warning(
                f"{sha256[:16]} cannot be opened yet, and is asked for again for "
                f"{OPEN_PATIENCE_S:.0f} s: {text}"
            )
        failures += 1
        await asyncio.sleep(pause_s(failures))


async def _manifest(source: Registry | PeerCopy, sha256: str) -> bytes:
    text = await source.manifest()
    try:
        if len(text) <= _SHORT_BYTES:
            read_manifest(text, sha256)
        else:
            await asyncio.to_thread(read_manifest, text, sha256)
    except InvalidModelError as error:
        raise InvalidModelError(f"{source.name}: {error}") from error
    return text
