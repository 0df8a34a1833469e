"""``model.remote``: an entry's word for a model that lies elsewhere, and the file it stands for.

Of what is imported for it a stub has most already.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from brisk.copies.connection import CourierConnection
from brisk.errors import ArtefactError, BriskError, InvalidModelError, UnavailableError
from brisk.ownership import check_directory
from brisk.paths import open_file
from brisk.settings import cache_directory

MOST_REMOTE_BYTES = 1 << 16
WHOLE = "whole"
"""In a copy's folder once all of the model's own files are on the disk: see ``whole_note``."""

MANIFEST = "manifest.json"
"""In a copy's folder, and beside the files that it names at a URL."""

_SHA256_DIGITS = 64


class Remote(NamedTuple):
    """Where a version's model lies: the manifest's URL and SHA-256."""

    url: str
    sha256: str


def remote_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Of the copies, each by its manifest's SHA-256."""
    return cache_directory(environment) / "remote"


def read_remote(text: bytes, where: str) -> Remote:
    """What ``model.remote`` says; ``where``: it lies, for messages.

    Raises InvalidModelError where it says something else.
    """
    expected = 'expected {"url": "https://…/manifest.json", "sha256": "<64 hexadecimal digits>"}'
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidModelError(f"{where}: {error}; {expected}") from error
    names = set(record) if isinstance(record, dict) else set()
    if names != {"url", "sha256"}:
        raise InvalidModelError(f"{where}: {sorted(names)!r:.120}; {expected}")
    url, sha256 = record["url"], record["sha256"]
    if not isinstance(url, str) or not isinstance(sha256, str):
        raise InvalidModelError(f"{where}: {url!r:.120}, {sha256!r:.80}; {expected}")
    is_digest = len(sha256) == _SHA256_DIGITS and not set(sha256.lower()) - set("0123456789abcdef")
    if not is_digest or "://" not in url or not url.isprintable():
        raise InvalidModelError(f"{where}: {url!r:.120}, {sha256!r:.80}; {expected}")
    return Remote(url, sha256.lower())


def read_remote_file(remote_file: Path) -> Remote:
    """As ``read_remote``."""
    try:
        with open_file(remote_file) as file:
            text = file.read(MOST_REMOTE_BYTES)
    except OSError as error:
        raise InvalidModelError(f"{remote_file}: cannot be read: {error.strerror}") from error
    return read_remote(text, str(remote_file))


def whole_note(model: Path, manifest: bytes) -> bytes:
    """What ``WHOLE`` says, so that who asks for the model need not read the manifest: where it is
    in the folder, and a checksum of that and the manifest. Where it is another one they look."""
    name = os.fsencode(model)
    return b"%d\n%s" % (crc32(name + manifest), name)


def _noted_model(folder: Path) -> Path:
    """Raises OSError or ValueError where the copy is not whole, or does not say so."""
    check_directory(folder)
    checksum, name = (folder / WHOLE).read_bytes().split(b"\n")
    if crc32(name + (folder / MANIFEST).read_bytes()) != int(checksum):
        raise ValueError("another manifest")
    return folder / os.fsdecode(name)


def resolve(remote_file: Path, meanwhile: Callable[[], None] = lambda: None) -> Path:
    """The model's file in the copy of what ``model.remote`` names, fetched as far as to say what
    the model is: its weights may still be on their way. ``meanwhile``: called where that has to be
    waited for.

    Raises InvalidModelError where the file says no such place, or what lies there is not what it
    says, UnavailableError where nothing could be fetched.
    """
    remote = read_remote_file(remote_file)
    folder = remote_directory() / remote.sha256
    with contextlib.suppress(OSError, ValueError):
        return _noted_model(folder)
    if (folder / WHOLE).exists():
        from brisk.copies.local import LocalCopy  # by who need not ask the courier alone

        with contextlib.suppress(OSError, ArtefactError):
            return LocalCopy(folder).model
    try:
        with CourierConnection() as courier:
            courier.send("open", remote._asdict())
            meanwhile()
            return Path(str(courier.answer()["ok"]["model"]))
    except BriskError as error:
        raise type(error)(f"{remote_file}: {error}") from error
    except OSError as error:
        raise UnavailableError(f"{remote_file}: {error}") from error
