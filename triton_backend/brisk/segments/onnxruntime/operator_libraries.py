"""Libraries of custom operators: whose they are, and the name by which each is loaded afresh.

A library is executed, so it must lie where nobody but this user and root can write. The dynamic
loader goes by names: asked for a path that it knows, it gives what it has loaded from there, also
when the file is another one by now. A new file of an old name would compute by the old operators,
so it is asked for by another spelling of its path, from which a new file is loaded.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from brisk.errors import InvalidModelError
from brisk.ownership import open_own

_known: dict[str, list[tuple[int, ...]]] = {}
"""By path: device, inode, size and time of each file that was loaded from there, in order."""
_lock = threading.Lock()


def loadable_name(path: str) -> str:
    """A spelling of ``path`` that the dynamic loader has for this very file, or for none.

    Any thread. Raises InvalidModelError where there is no such file, where others could have
    written it, or where a file that is in use was written anew in its place.
    """
    real = os.path.realpath(path)
    try:
        descriptor = open_own(Path(real))
    except OSError as error:
        raise InvalidModelError(
            f"the library of custom operators {path} cannot be used: {error}"
        ) from error
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    found = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    with _lock:
        known = _known.setdefault(real, [])
        if found not in known:
            if any(each[:2] == found[:2] for each in known) and _is_mapped(real):
                raise InvalidModelError(
                    f"the library of custom operators {path} was written anew while it is in use; "
                    "expected a new file that takes its place (write another one and rename it), "
                    "or that every entry which uses it is unloaded before"
                )
            known.append(found)
        turn = known.index(found)
    folder, name = os.path.split(real)
    return os.path.join(folder, "./" * turn + name)


def _is_mapped(path: str) -> bool:
    """Whether a library of that path is in this process's memory."""
    end = f" {path}\n".encode()
    with open("/proc/self/maps", "rb") as maps:
        return any(line.endswith(end) for line in maps)
