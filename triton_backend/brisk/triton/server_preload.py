"""The library that ``brisk serve`` loads into ``tritonserver``: ``fork_server/source/server.cpp``.

With it, Triton's completion of a Brisk entry takes only its stub's time, not a second more, and
entries whose names a shell would change can be served. A server without the library waits the
second, and waits forever for the stub of such a name.
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
"""The variable for the value of PRELOADS without the library, which restores it in the server."""

_PLAIN = frozenset(string.ascii_letters + string.digits + "/._-+=:,@%")
"""The characters that a shell leaves unchanged. ``server.cpp`` has the same ones, and the blank
between words."""

_SEPARATORS = frozenset(" :")


def preloading(environment: Mapping[str, str], backend: Path) -> dict[str, str]:
    """Return ``environment`` for a server that loads the library in ``backend``, a Brisk folder.

    It is unchanged if the library is missing, is not as compiled, or is switched off, or if its
    path cannot be named (``may_be_preloaded``).
    """
    file = backend / SERVER_PRELOAD
    if environment.get(FORK_STUBS) == "0" or not may_be_preloaded(file):
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
    """Whether a server that is started with ``environment`` loads the library."""
    libraries = environment.get(PRELOADS, "").replace(":", " ").split(" ")
    return any(os.path.basename(each) == SERVER_PRELOAD for each in libraries)


def may_be_preloaded(path: Path) -> bool:
    """Whether the loader takes the path as one: it splits PRELOADS at blanks and colons, and has
    no quotes."""
    return not _SEPARATORS.intersection(os.fspath(path))


def can_start_stubs(directory: Path, environment: Mapping[str, str]) -> bool:
    """Whether a server with ``environment`` can start the stubs of a backend directory: its path
    is plain, or the library, which starts them without a shell, is loaded."""
    return may_be_preloaded(directory) and (is_plain(directory) or is_preloaded(environment))


def is_plain(path: Path) -> bool:
    """Whether a shell leaves all characters of the path unchanged."""
    return _PLAIN.issuperset(os.fspath(path))


def unstartable(repositories: Sequence[Path]) -> Iterator[Path]:
    """Yield the entries whose stubs a server without the library cannot start, because of their
    paths."""
    for repository in repositories:
        for entry in sorted(repository.iterdir()) if repository.is_dir() else ():
            if os.path.isdir(entry) and not is_plain(entry):
                yield entry
