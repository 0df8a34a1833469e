"""Identifies the model that a path names now: a file that has changed is another model.

A load begins before the model has been read to see which files it names. They all lie in its
version's folder (``brisk.paths``), so the state of every file there, and in folders of it, is part
of the model's identity: a look at each takes some microseconds, and nothing is read. A model that
was read knows its files: ``Source.made_of``. A failure is noted under its identity at that time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from brisk.errors import ArtefactError, InvalidModelError, UnavailableError
from brisk.exits.files.versions import CACHES_SUFFIX, REFERENCE_SUFFIX
from brisk.ownership import make_private
from brisk.paths import Stamp, is_kept, stamp_of, version_folder
from brisk.settings import cache_directory
from brisk.tuning import SessionTuning

if TYPE_CHECKING:
    from brisk.copies.local import LocalCopy

_OF_CACHES = (CACHES_SUFFIX, REFERENCE_SUFFIX)


def identity_of(path: str, tuning: SessionTuning = SessionTuning()) -> str:  # noqa: B008
    """Return a text that identifies the model at ``path``: the path and state of all files that it
    may be made of, the entry's tuning, and the state of the operators' libraries.

    Learned caches are left out: they change under a session and are checked against the model.
    Raises InvalidModelError if there is no such file.
    """
    try:
        os.stat(path)
        folder = version_folder(Path(path))
        goes_deep = folder.name.isdecimal()  # else a command's file, which may lie in any folder
        files = sorted(_files_below(os.path.realpath(folder), goes_deep=goes_deep))
    except (OSError, ValueError) as error:
        raise InvalidModelError(f"model file {path!r} cannot be read: {error}") from error
    # external data is searched next to the path; links to one file need not lie in one folder
    place = os.path.realpath(os.path.dirname(path)), os.path.realpath(path)
    own = "" if tuning == SessionTuning() else f":{tuning}:{list(_libraries(tuning))}"
    return f"{place}:{files}{own}"


def _files_below(folder: str, *, goes_deep: bool) -> Iterator[tuple[str, list[Stamp]]]:
    """Yield the path and state of each file except learned caches; for a link its own state and
    that of its target.

    ``goes_deep``: also in folders; a folder that cannot be read holds nothing of a model. Raises
    OSError if ``folder`` itself cannot be read."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    if goes_deep:
                        yield from _files_below(entry.path, goes_deep=True)
            elif not entry.name.endswith(_OF_CACHES):
                with contextlib.suppress(OSError):  # the file has gone, or the link leads nowhere
                    stamps = [stamp_of(entry.stat(follow_symlinks=False))]
                    if entry.is_symlink():
                        stamps.append(stamp_of(entry.stat()))
                    yield entry.path, stamps


def _libraries(tuning: SessionTuning) -> Iterator[Stamp]:
    for path in tuning.operator_libraries:
        try:
            yield stamp_of(os.stat(path))
        except (OSError, ValueError) as error:
            raise InvalidModelError(
                f"the library of custom operators {path!r} cannot be read: {error}"
            ) from error


def copy_at(path: Path) -> LocalCopy | None:
    """Return the local copy that a model's file belongs to, if the model lies elsewhere.

    Raises UnavailableError if the copy cannot be used.
    """
    try:
        if not is_kept(os.stat(path)):
            return None
        from brisk.copies.local import copy_of  # imported only for such entries

        return copy_of(path)
    except (OSError, ArtefactError) as error:
        raise UnavailableError(f"{path}: {error}") from error


def note_of(model: Path, kind: str) -> Path:
    """Return the path of a note of this kind on the model as it is now: a changed one is tried
    anew.

    Raises InvalidModelError if the model is gone.
    """
    digest = hashlib.blake2b(os.fsencode(identity_of(str(model))), digest_size=16).hexdigest()
    return cache_directory() / kind / digest


# Exchanges for warm sessions that have ended their worker are not tried without end.
#
# Making a session optimises the model's graph, and a model may crash ONNX Runtime there, after it
# has been served for a while and when the crash is attributed to no load. Each exchange therefore
# leaves a note on disk until it is over; notes that are left over count workers that died of it.

MOST_DEATHS = 2
"""The deaths of workers during exchanges of a model from which on none is tried: one worker may
have died of something else meanwhile."""


@contextlib.contextmanager
def exchange_attempt(model: Path, most_deaths: int = MOST_DEATHS) -> Iterator[bool]:
    """Open a context around an exchange; it yields whether the exchange may be tried. The note is
    removed when the exchange has ended, with or without an error.

    If no note can be written, it may be tried. A load may start with optimised sessions, too: if
    a worker died of that, the next load starts without."""
    try:
        note = note_of(model, "exchanges")
        deaths = int(note.read_text() or "0") if note.exists() else 0
        if deaths < most_deaths:
            make_private(note.parent)
            note.write_text(str(deaths + 1))
    except (OSError, ValueError, InvalidModelError):
        yield True
        return
    if deaths >= most_deaths:
        yield False
        return
    try:
        yield True
    finally:
        with contextlib.suppress(OSError):
            note.unlink()
