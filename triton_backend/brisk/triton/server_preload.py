"""The library that ``brisk serve`` loads into ``tritonserver``: ``fork_server/source/server.cpp``.

With it, Triton's completion of an entry of Brisk's takes what its stub takes, not a second more,
and names that a shell would not take as they are can be served. A server that was started without
it waits the second, and for such a name's stub for ever.
"""

from __future__ import annotations

import os
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from brisk.fork_server.start import SERVER_PRELOAD, check_preload
from brisk.settings import FORK_STUBS

PRELOADS = "LD_PRELOAD"
_OTHERS = "_BRISK_SERVER_LD_PRELOAD"
"""The value of PRELOADS without the file, which sets it again in the server."""

_PLAIN = frozenset(string.ascii_letters + string.digits + "/._-+=:,@%")
"""The characters that a shell leaves as they are. ``server.cpp`` has the same, and the blank
between words."""


def preloading(environment: Mapping[str, str], backend: Path) -> dict[str, str]:
    """Return ``environment`` for a server that loads the file in ``backend``, a folder of Brisk's.

    It is the same if the file is not there, is not as it was compiled, or is not wanted.
    """
    file = backend / SERVER_PRELOAD
    if environment.get(FORK_STUBS) == "0":
        return dict(environment)
    try:
        check_preload(file)
    except OSError:
        return dict(environment)
    others = environment.get(PRELOADS, "")
    return {
        **environment,
        PRELOADS: f"{file}:{others}" if others else str(file),
        _OTHERS: others,
    }


def is_preloaded(environment: Mapping[str, str]) -> bool:
    """Whether a server that was started with ``environment`` has the file in it."""
    return SERVER_PRELOAD in environment.get(PRELOADS, "")


def is_plain(path: Path) -> bool:
    """Whether a shell takes the path as it is."""
    return _PLAIN.issuperset(os.fspath(path))


def unstartable(repositories: Sequence[Path]) -> Iterator[Path]:
    """Yield the entries whose stubs a server without the file cannot start, by their paths."""
    for repository in repositories:
        for entry in sorted(repository.iterdir()) if repository.is_dir() else ():
            if entry.is_dir() and not is_plain(entry):
                yield entry
