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
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from brisk.artefacts.content import is_among_copies
from brisk.artefacts.store import has_whole_seconds, is_settled
from brisk.errors import ArtefactError, InvalidModelError, UnavailableError
from brisk.exits.files.versions import CACHES_SUFFIX, REFERENCE_SUFFIX
from brisk.paths import Stamp, is_kept, stamp_of, version_folder
from brisk.settings import cache_directory
from brisk.tuning import SessionTuning

if TYPE_CHECKING:
    from brisk.copies.local import LocalCopy

_OF_CACHES = (CACHES_SUFFIX, REFERENCE_SUFFIX)

NOTE_BYTES = 16
"""The bytes of the digest by which a note on a model is named."""


def identity_of(path: str, tuning: SessionTuning = SessionTuning()) -> str:  # noqa: B008
    """Return a text that identifies the model at ``path``: the path and state of all files that it
    may be made of, the entry's tuning, and the state of the operators' libraries.

    Learned caches are left out: they change under a session and are checked against the model.
    The text is equal to no other one if a file may change without its stamp showing it.
    Raises InvalidModelError if there is no such file.
    """
    taken_ns = time.time_ns()
    try:
        os.stat(path)
        folder = version_folder(Path(path))
        goes_deep = folder.name.isdecimal()  # else a command's file, which may lie in any folder
        files = sorted(_files_below(os.path.realpath(folder), goes_deep=goes_deep))
    except (OSError, ValueError) as error:
        raise InvalidModelError(f"model file {path!r} cannot be read: {error}") from error
    # external data is searched next to the path; links to one file need not lie in one folder
    place = os.path.realpath(os.path.dirname(path)), os.path.realpath(path)
    libraries = list(_libraries(tuning))
    own = "" if tuning == SessionTuning() else f":{tuning}:{libraries}"
    stamps = (*libraries, *(stamp for _, stamps in files for stamp in stamps))
    if any(has_whole_seconds(each) and not is_settled(each, taken_ns) for each in stamps):
        own += f":{os.urandom(NOTE_BYTES).hex()}"
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

    Raises UnavailableError if the copy cannot be used, or the file is of one that is not whole and
    has lost the mode of arriving files.
    """
    try:
        is_marked = is_kept(os.stat(path))
        if not is_marked and not is_among_copies(path):
            return None
        from brisk.copies.local import check_marked_at, copy_of  # imported only for such entries

        if is_marked:
            return copy_of(path)
        check_marked_at(path)
        return None
    except (OSError, ArtefactError) as error:
        raise UnavailableError(f"{path}: {error}") from error


def whole_copy_at(path: Path) -> LocalCopy | None:
    """Return what ``copy_at`` does, once the copy's bytes have been compared with the digests by
    which artefacts are found: block until then.

    Raises BriskError and OSError if that cannot be done just now, InvalidModelError if they
    differ.
    """
    copy = copy_at(path)
    if copy is not None:
        from brisk.copies.courier import await_whole  # imported only for such models

        await_whole(copy)
    return copy


def note_of(model: Path, kind: str, tuning: SessionTuning = SessionTuning()) -> Path:  # noqa: B008
    """Return the path of a note of this kind on the model as it is now, with the entry's tuning: a
    changed one is tried anew. Its name are NOTE_BYTES in hexadecimal digits.

    Raises InvalidModelError if the model is gone.
    """
    identity = os.fsencode(identity_of(str(model), tuning))
    digest = hashlib.blake2b(identity, digest_size=NOTE_BYTES).hexdigest()
    return cache_directory() / kind / digest
