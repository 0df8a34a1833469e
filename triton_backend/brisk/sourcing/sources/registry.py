"""The registry: the folder of an entry's URL on a web server, an object store or a disk."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from brisk.copies.manifest import CHUNK_BYTES, HEAD_NAME, MOST_MANIFEST_BYTES, ListedFile
from brisk.errors import InvalidConfigurationError
from brisk.sourcing.sources import addresses
from brisk.sourcing.sources.downloads import READ_BYTES, ArrivingPieces, Web
from brisk.sourcing.sources.failures import MissingError, SourceError, WrongBytesError

_SIGNED_S = 3600

_MAKING_SIGNER = threading.Lock()
"""Held while boto3 makes a client: the session that all share is not safe for several threads."""


def expect_any(least: int) -> None:
    """Ignore ``Pieces.expect`` for a source whose pieces are always large."""


class Pieces(NamedTuple):
    """A stream of a file's bytes, as they arrive."""

    content: AsyncIterator[bytes]
    offset: int
    """The place of the first piece in the file, in bytes."""
    is_ranged: bool
    """Whether the source supports ranges, so that ``offset`` may be anywhere in the file."""
    expect: Callable[[int], None] = expect_any
    """Sets the least number of bytes that are worth a wake-up, until the next call. That many, or
    the end of the connection, must be on their way."""


class ByteSource(Protocol):
    """The interface of a source of bytes of a model's files."""

    name: str
    """The name in messages, which also identifies the source."""
    is_peer: bool

    def read(
        self, number: int, file: ListedFile, offset: int, size: int
    ) -> AbstractAsyncContextManager[Pieces]:
        """Read bytes of a file of the manifest; they may end early, and begin before ``offset``.

        Raises SourceError for a failure that may pass, MissingError if there is no such file,
        WrongBytesError if the file is not the manifest's.
        """


class Registry:
    """The files in the folder of a manifest's URL, as a source of bytes."""

    is_peer = False

    def __init__(self, url: str, web: Web) -> None:
        self._url = url
        self._web = web
        self._scheme = urlsplit(url).scheme
        self._signer: Any = None
        self.name = addresses.shown_url(url).rpartition("/")[0]

    async def manifest(self) -> bytes:
        """Return the manifest. Raises SourceError, MissingError if there is none."""
        if self._scheme == "file":
            return await asyncio.to_thread(_read_small, self._url)
        return await self._web.get_small(await self._address(self._url), MOST_MANIFEST_BYTES)

    async def head(self) -> bytes:
        """Return the first chunk of the file with the head's usual name, unverified; nothing for a
        ``file:`` URL.

        Raises SourceError.
        """
        if self._scheme == "file":
            return b""
        url = addresses.file_url(self._url, HEAD_NAME)
        return await self._web.get_beginning(await self._address(url), CHUNK_BYTES)

    @asynccontextmanager
    async def read(
        self, number: int, file: ListedFile, offset: int, size: int
    ) -> AsyncIterator[Pieces]:
        """Read bytes as ``ByteSource.read`` describes."""
        url = addresses.file_url(self._url, file.name)
        if self._scheme == "file":
            opened = await asyncio.to_thread(_open, url, file.size)
            with contextlib.closing(opened):
                yield Pieces(opened.pieces(offset, size), offset, True)
            return
        address = await self._address(url)
        async with self._web.get_range(address, offset, size, file.size) as answer:
            content = ArrivingPieces(answer.response)
            with contextlib.closing(content):
                yield Pieces(content, answer.offset, answer.is_ranged, content.expect)

    async def _address(self, url: str) -> str:
        """Return the URL to request; an ``s3:`` URL is signed with the machine's credentials."""
        if self._scheme != "s3":
            return url
        return await asyncio.to_thread(self._sign, url)

    def _sign(self, url: str) -> str:
        parts = urlsplit(url)
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError as error:
            raise InvalidConfigurationError(
                f"{addresses.shown_url(url)}: boto3 signs such URLs, and is not installed: "
                f"pip install 'brisk-triton[s3]'"
            ) from error
        try:
            with _MAKING_SIGNER:
                if self._signer is None:
                    self._signer = boto3.client("s3", config=Config(signature_version="s3v4"))
            place = {"Bucket": parts.netloc, "Key": unquote(parts.path).lstrip("/")}
            return str(self._signer.generate_presigned_url("get_object", place, _SIGNED_S))
        except (BotoCoreError, ClientError, ValueError) as error:
            raise SourceError(f"{addresses.shown_url(url)}: {error}") from error


class _File:
    """A file of a directory on this machine, read in pieces. It is closed at the latest with the
    object: who asked a thread to open it may have gone."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()

    async def pieces(self, offset: int, size: int) -> AsyncIterator[bytes]:
        while size:
            data = await asyncio.to_thread(
                os.pread, self._descriptor, min(size, READ_BYTES), offset
            )
            if not data:
                return
            yield data
            offset, size = offset + len(data), size - len(data)


def _open(url: str, total: int) -> _File:
    shown = addresses.shown_url(url)
    try:
        descriptor = os.open(_path(url), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise MissingError(f"{shown}: there is no such file") from error
    except OSError as error:
        raise SourceError(f"{shown}: {error.strerror}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size != total:
        os.close(descriptor)
        raise WrongBytesError(f"{shown} has {status.st_size} bytes, the manifest says {total}")
    return _File(descriptor)


def _read_small(url: str) -> bytes:
    shown = addresses.shown_url(url)
    try:
        with open(os.open(_path(url), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SourceError(f"{shown} is no file")
            data = file.read(MOST_MANIFEST_BYTES + 1)
    except FileNotFoundError as error:
        raise MissingError(f"{shown}: there is no such file") from error
    except OSError as error:
        raise SourceError(f"{shown}: {error.strerror}") from error
    if len(data) > MOST_MANIFEST_BYTES:
        raise SourceError(f"{shown} has more than {MOST_MANIFEST_BYTES} bytes")
    return data


def _path(url: str) -> str:
    return unquote(urlsplit(url).path)
