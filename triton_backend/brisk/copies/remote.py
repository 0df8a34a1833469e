"""An entry's file ``model.remote``, which names a remote model, and the place of the local copy.

A stub has imported most of this module's imports already.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from brisk.errors import InvalidModelError
from brisk.ownership import check_directory, hold, open_own
from brisk.paths import COPIES, open_file
from brisk.settings import cache_directory

MOST_REMOTE_BYTES = 1 << 16
WHOLE = "whole"
"""The name of the file that a copy's folder gets once all of the model's own files are on the
disk, and are what the manifest lists: see ``whole_note``."""

REFUSED = "refused"
"""The name of the file that it gets instead if they are not, with the reason: the manifest names
another model's artefacts."""

MANIFEST = "manifest.json"
"""The manifest's name in a copy's folder, and next to the files that it names at a URL."""

_SHA256_DIGITS = 64


class Remote(NamedTuple):
    """The place of a version's model: the manifest's URL and SHA-256."""

    url: str
    sha256: str


def remote_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of the copies, each by its manifest's SHA-256."""
    return cache_directory(environment) / COPIES


def read_remote(text: bytes, where: str) -> Remote:
    """Return the place that a ``model.remote`` names. ``where``: the file's name for messages.

    Raises InvalidModelError if the text is anything else.
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
    """Return the place that the file ``model.remote`` names.

    Raises InvalidModelError if it cannot be read, or like ``read_remote``.
    """
    try:
        with open_file(remote_file) as file:
            text = file.read(MOST_REMOTE_BYTES)
    except OSError as error:
        raise InvalidModelError(f"{remote_file}: cannot be read: {error.strerror}") from error
    return read_remote(text, str(remote_file))


def whole_note(model: Path, manifest: bytes) -> bytes:
    """Return the content of ``WHOLE``: ``model``, the model's path in the folder, and a checksum
    of that and the manifest. So a requester of the model need not parse a manifest with that
    checksum."""
    name = os.fsencode(model)
    return b"%d\n%s" % (crc32(name + manifest), name)


def noted_model(folder: Path) -> Path:
    """Return the model's file in the copy in ``folder``, as ``WHOLE`` names it.

    Raises OSError or ValueError if the copy is not whole, or its note is of another manifest.
    """
    check_directory(folder)
    checksum, name = (folder / WHOLE).read_bytes().split(b"\n")
    if crc32(name + (folder / MANIFEST).read_bytes()) != int(checksum):
        raise ValueError("another manifest")
    return folder / os.fsdecode(name)


_kept: dict[Path, int] = {}
"""The descriptors of the manifests that ``keep`` has locked, by the copies' folders."""


def keep(folder: Path) -> None:
    """Keep the copy in ``folder`` from being removed for as long as this process lives, and note
    that it is used now.

    Raises FileNotFoundError if it is being removed, other OSErrors like ``open_own``.
    """
    descriptor = open_own(folder / MANIFEST)
    if not hold(descriptor):
        os.close(descriptor)
        raise FileNotFoundError(f"{folder} is being removed")
    if (before := _kept.pop(folder, None)) is not None:
        os.close(before)
    _kept[folder] = descriptor
    with contextlib.suppress(OSError):  # a cache that is only read
        os.utime(descriptor)
