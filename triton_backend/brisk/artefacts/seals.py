"""The beginning of an artefact, its seal, and the seal's key.

A form that is published has zeros in the seal's place: each machine that fetches it seals it anew.

No numpy here, for the courier: importing that when a form comes takes 80 ms of its loop.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Mapping

from brisk.artefacts import store
from brisk.errors import ArtefactError
from brisk.ownership import make_private, open_own

MAGIC = b"BRISKART"
FORMAT = 3
DIGEST_BYTES = KEY_BYTES = 32
MOST_MANIFEST_BYTES = 1 << 28

SEAL = slice(64, 96)
"""The bytes of an artefact that hold its seal, the last ones of its header."""

_BEGINNING = struct.Struct("<8sQQQ")
"""Magic, format, and the sizes of the manifest, which is at the end, and of the file."""


def seal(content: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(
        content, digest_size=DIGEST_BYTES, key=key, person=b"brisk artefact"
    ).digest()


def sealed(beginning: bytes) -> bytes:
    """Return the beginning of an artefact with this machine's seal put in. Raises OSError."""
    start = beginning[: SEAL.start]
    return start + seal(start, make_key()) + beginning[SEAL.stop :]


def manifest_size(header: bytes, size: int) -> int:
    """Return the size of the manifest at the end of an artefact of ``size`` bytes.

    Nothing else of the header is checked. Raises ArtefactError if it is of no artefact of that
    size.
    """
    magic, version, length, stated = _BEGINNING.unpack_from(header.ljust(SEAL.stop, b"\0"))
    if (magic, version, stated) != (MAGIC, FORMAT, size) or length > MOST_MANIFEST_BYTES:
        raise ArtefactError("it is no prepared form")
    if length + SEAL.stop > size:
        raise ArtefactError("it is cut off")
    return int(length)


def read_key(environment: Mapping[str, str] = os.environ) -> bytes:
    """Return the seal's key.

    Raises FileNotFoundError if there is none yet, PermissionError if another user could have made
    or read it or its length is wrong, OSError.
    """
    path = store.artefacts_directory(environment) / "key"
    with open(open_own(path, is_secret=True), "rb") as file:
        key = file.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise PermissionError(f"{path} is no key of {KEY_BYTES} bytes; remove it")
    return key


def make_key() -> bytes:
    """Return the seal's key, made if there is none: concurrent processes all get the same one.

    Raises OSError like ``read_key``, and if the cache directory cannot be written.
    """
    with contextlib.suppress(FileNotFoundError):
        return read_key()
    import secrets  # once for each cache directory
    import tempfile

    directory = store.artefacts_directory()
    make_private(directory)
    descriptor, draft = tempfile.mkstemp(prefix=".key.", dir=directory)  # of mode 0600
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process was first: its key holds
            os.link(draft, directory / "key")
    finally:
        os.unlink(draft)
    return read_key()
