"""A C++ compiler, and files that tell whether they are as they were made."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from brisk.ownership import open_own

COMPILERS = ("c++", "g++", "clang++")

_SEAL_BYTES = hashlib.sha256().digest_size


class CompilerError(Exception):
    """What was to be compiled is not; the message says why and what would help."""


def find_compiler() -> Path:
    """``$CXX``, else the first of the usual ones. Raises CompilerError where there is none."""
    found = os.environ.get("CXX") or next(filter(None, map(shutil.which, COMPILERS)), None)
    compiler = shutil.which(found) if found else None
    if compiler is None:
        wanted = found or ", ".join(COMPILERS)
        raise CompilerError(f"no C++ compiler ({wanted}) is installed")
    return Path(compiler)


def is_whole(file: Path) -> bool:
    """Whether the file is there, as it was made, and nobody else can have written it."""
    try:
        return is_sealed(file)
    except OSError:
        return False


def is_sealed(file: Path, *, is_anywhere: bool = False) -> bool:
    """Whether it ends with the digest of all before, as ``add_seal`` leaves it.

    ``is_anywhere`` as of ``open_own``. Raises PermissionError where another user can have written
    it, OSError where it cannot be read.
    """
    with open(open_own(file, is_anywhere=is_anywhere), "rb") as opened:
        return has_seal(opened.read())


def has_seal(data: bytes) -> bool:
    return hashlib.sha256(data[:-_SEAL_BYTES]).digest() == data[-_SEAL_BYTES:]


def add_seal(file: Path) -> None:
    """Append the digest of all that is there; what loads or starts the file reads over it."""
    data = file.read_bytes()
    with file.open("ab") as end:
        end.write(hashlib.sha256(data).digest())
