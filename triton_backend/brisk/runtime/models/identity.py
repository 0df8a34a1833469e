"""Which model a path names now: a file that has changed is another one."""

from __future__ import annotations

import os
from collections.abc import Iterator

from brisk.errors import InvalidModelError
from brisk.exits.files.versions import CACHES_SUFFIX, REFERENCE_SUFFIX
from brisk.tuning import SessionTuning

_OF_CACHES = (CACHES_SUFFIX, REFERENCE_SUFFIX)


def identity_of(path: str, tuning: SessionTuning = SessionTuning()) -> str:  # noqa: B008
    """Path and state of the model file and of its neighbours, external data among them; with how
    the entry wants it computed, and the state of the operators' libraries.

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
    own = "" if tuning.is_default else f":{tuning}:{list(_states(tuning))}"
    return f"{os.path.realpath(path)}:{state}{own}"


def _states(tuning: SessionTuning) -> Iterator[tuple[int, int, int]]:
    for path in tuning.operator_libraries:
        try:
            status = os.stat(path)
        except (OSError, ValueError) as error:
            raise InvalidModelError(
                f"the library of custom operators {path!r} cannot be read: {error}"
            ) from error
        yield status.st_ino, status.st_size, status.st_mtime_ns
