"""Which model an artefact was made of: the content of its files, and a cheap stamp of their state.

The digests decide. Reading 100 MB again to digest them takes 30 ms, so a stamp (size, times,
inode) that was seen together with a digest vouches for it until it changes, as it does in each
new container.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO, TypeVar

from brisk.artefacts.checksum import checksum_of_file
from brisk.paths import open_inside

Stamp = list[int]
"""Size, modification and change time in ns, inode, device."""

_Found = TypeVar("_Found")

RACY_NS = 50_000_000
"""A file changed this shortly ago may change again without its times showing it."""


def identify(directory: Path, names: Iterable[str]) -> dict[str, str]:
    """The files' checksums, which tell one model from another, by their names in ``directory``.

    Raises OSError, and InvalidModelError as ``open_inside``.
    """
    return _of_each(directory, names, checksum_of_file)


def stamps(directory: Path, names: Iterable[str]) -> dict[str, Stamp]:
    """The files' present states. Raises as ``identify``."""
    return _of_each(directory, names, lambda file: stamp_of(os.fstat(file.fileno())))


def _of_each(
    directory: Path, names: Iterable[str], look: Callable[[BinaryIO], _Found]
) -> dict[str, _Found]:
    found = {}
    for name in names:
        with open_inside(directory, name, "file of the model") as file:
            found[name] = look(file)
    return found


def are_settled(states: Mapping[str, Stamp]) -> bool:
    """Whether every later change of the files will show in their stamps."""
    latest_ns = max(max(stamp[1], stamp[2]) for stamp in states.values())
    return time.time_ns() - latest_ns > RACY_NS


def stamp_of(status: os.stat_result) -> Stamp:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]
