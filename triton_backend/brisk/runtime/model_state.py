"""Which model a path names now: a file that has changed is another one."""

from __future__ import annotations

import os

from brisk.errors import InvalidModelError
from brisk.exits.versions import CACHES_SUFFIX, REFERENCE_SUFFIX

_OF_CACHES = (CACHES_SUFFIX, REFERENCE_SUFFIX)


def identity_of(path: str) -> str:
    """Path and state of the model file and of its neighbours, external data among them.

    Learned caches are left out: they change under a session and are checked against the model.
    """
    directory = os.path.dirname(os.path.realpath(path))
    try:
        os.stat(path)
        with os.scandir(directory) as entries:
            files = sorted(
                (entry.name, entry.stat())
                for entry in entries
                if entry.is_file() and not entry.name.endswith(_OF_CACHES)
            )
    except (OSError, ValueError) as error:
        raise InvalidModelError(f"model file {path!r} cannot be read: {error}") from error
    state = [(name, status.st_ino, status.st_size, status.st_mtime_ns) for name, status in files]
    return f"{os.path.realpath(path)}:{state}"
