"""The identity of the model that an artefact was made of: the content of its files.

An artefact is found by digests, not by the model's path: a copy, a version that was moved, a
folder that Triton has filled from a cloud repository find what was made of the same bytes. The
digests are SHA-256, so that no author of a model can make one that is taken for another's. Reading
100 MB to digest them takes 50 ms, so a stamp (size, times, inode, device) that was seen together
with a digest vouches for it until the stamp changes, unless its times are whole seconds: images
and mounted buckets number their files anew at each mount, and files that came together share
times.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeVar

from brisk.artefacts import store
from brisk.errors import ArtefactError, InvalidModelError, UnavailableError
from brisk.ownership import make_private
from brisk.paths import COPIES, Stamp, is_kept, open_file, open_inside, stamp_of
from brisk.settings import cache_directory

if TYPE_CHECKING:
    from brisk.copies.manifest import ListedFile

ITSELF = ""
"""The name of the model's own file among its files; no file has this name. Other files are named
as in the model, relative to its folder."""

_CHUNK_BYTES = 4 << 20
"""The bytes that one thread digests at a time; the digests are digested together."""

_SKETCHED_PARTS, _SKETCHED_BYTES = 16, 4096

_Result = TypeVar("_Result")


class Content(NamedTuple):
    """The digests and stamps of a model's files, by their names."""

    digests: Mapping[str, str]
    stamps: Mapping[str, Stamp]


def content_of(
    model: Path, names: Iterable[str], environment: Mapping[str, str] = os.environ
) -> Content:
    """Return the digests and stamps of a model's files ``names``; ``ITSELF``: its own file.

    ``environment``: the one whose notes are read and written. Raises OSError, and
    InvalidModelError like ``open_inside``.
    """
    digested = _of_each(model, names, lambda file: _digest(file, environment))
    return Content(
        {name: digest for name, (digest, _) in digested.items()},
        {name: stamp for name, (_, stamp) in digested.items()},
    )


def check_content(
    artefact: Path,
    model: Path,
    digests: Mapping[str, str],
    environment: Mapping[str, str] = os.environ,
) -> Mapping[str, Stamp]:
    """Return the present stamps of the files that ``artefact`` was made of.

    Raises ArtefactError if one of them is missing or has changed.
    """
    if ITSELF not in digests:
        raise ArtefactError(f"{artefact}: made of another file")
    try:
        content = content_of(model, digests, environment)
    except (OSError, InvalidModelError) as error:
        raise ArtefactError(f"{artefact}: a file of its model is missing: {error}") from error
    if content.digests != digests:
        raise ArtefactError(f"{artefact}: the model has changed since it was made")
    return content.stamps


def stamps(model: Path, names: Iterable[str]) -> dict[str, Stamp]:
    """Return the present stamps of a model's files, by name. Raises like ``content_of``."""
    return _of_each(model, names, lambda file: stamp_of(os.fstat(file.fileno())))


def written_since(model: Path, before: Mapping[str, Stamp]) -> Path | None:
    """Return a file of the model that was written to since its stamp ``before``; None: there is
    none.

    A file that was removed or replaced does not count.
    """
    for name, stamp in before.items():
        try:
            present = stamps(model, [name])[name]
        except (OSError, InvalidModelError):
            continue
        # the same inode and device, another size or mtime: links to a file change its ctime, too
        if present[3:] == stamp[3:] and present[:2] != stamp[:2]:
            return model if name == ITSELF else model.parent / name
    return None


def note_digests(model: Path, names: Iterable[str]) -> None:
    """Digest a model's files, if they can be read, so that ``is_same_content`` knows them."""
    with contextlib.suppress(OSError, InvalidModelError):
        content_of(model, names)


def is_same_content(
    model: Path, before: Mapping[str, Stamp], present: Mapping[str, Stamp]
) -> bool:
    """Whether a model's files, whose stamps are ``present``, hold what they held when their stamps
    were ``before``.

    A link to a file or another mode changes its ctime alone, as a write does after which the mtime
    was put back. Digests tell these apart, if the file was digested before, too. Raises like
    ``content_of``.
    """
    if before == present:
        return True
    if {name: _but_ctime(each) for name, each in before.items()} != {
        name: _but_ctime(each) for name, each in present.items()
    }:
        return False
    content_of(model, present)  # notes the digests if files are still as ``present``
    for name, stamp in present.items():
        _, ctimes = _read_digest(_note_of(stamp, os.environ), stamp)
        if before[name] != stamp and not {before[name][_CTIME], stamp[_CTIME]} <= {*ctimes}:
            return False
    return True


# Where a model's artefacts lie: artefacts/<sketch>/<digest of the model's file>/.
#
# The sketch is a digest of the size and a few parts. A model without artefacts is not read to
# learn that: no folder has its sketch.
#
# What the manifest of a copy lists is the claim of who wrote it until the courier has compared it
# with the bytes: before that a copy finds nothing here and adds nothing, since an author could
# name another model's digests. It uses the forms that its own manifest names meanwhile.


def find_folder(model: Path, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder of artefacts of models whose own file is equal to ``model``, if there is
    one; None also for a file of a copy that is not compared yet."""
    with _opened(model, ITSELF) as file:
        if not _is_compared(file, environment):
            return None
        sketched = store.artefacts_directory(environment) / sketch_of(file, environment)
        if not sketched.is_dir():
            return None
        folder = sketched / _digest(file, environment)[0]
    return folder if folder.is_dir() else None


def writable_folder(model: Path) -> Path:
    """Return the folder that ``find_folder`` finds, made if there is none.

    Raises PermissionError if it cannot be written, or others can write it, too; UnavailableError
    for a copy that is not compared yet; OSError, and InvalidModelError like ``open_inside``.
    """
    with _opened(model, ITSELF) as file:
        if not _is_compared(file, os.environ):
            raise UnavailableError(f"{model}: not compared with its manifest's digests yet")
        sketched = store.artefacts_directory() / sketch_of(file)
        folder = sketched / _digest(file, os.environ)[0]
    make_private(folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be written")
    return folder


_NAMES = "files.json"
"""The file in a folder of artefacts that lists the further files of its models, whose own file is
the same."""


def note_names(folder: Path, names: Iterable[str]) -> None:
    """Note the names of all files of the models whose artefacts ``folder`` holds. Raises
    OSError."""
    others = json.dumps(sorted(name for name in names if name != ITSELF)).encode()
    store.publish(folder / _NAMES, lambda file: file.write(others))


def digests_in(
    folder: Path, model: Path, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the digests of all files of ``model``, whose artefacts ``folder`` holds.

    Raises like ``content_of``.
    """
    noted = store.read_note(folder / _NAMES)
    if not isinstance(noted, list) or not all(isinstance(name, str) for name in noted):
        noted = []
    return {ITSELF: folder.name, **content_of(model, noted, environment).digests}


def digest_of_all(digests: Mapping[str, str]) -> str:
    """Return the digest of a model with all its files: 16 hexadecimal digits."""
    text = json.dumps(sorted(digests.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def sketch_of(file: BinaryIO, environment: Mapping[str, str] = os.environ) -> str:
    """Return the sketch of a file: sixteen hexadecimal digits, equal for equal content."""
    if (listed := _listed(file, environment)) is not None:
        return listed.sketch
    return sketch_of_file(file.fileno(), os.fstat(file.fileno()).st_size)


def sketch_of_file(descriptor: int, size: int) -> str:
    """Return the sketch of the first ``size`` bytes, which are all here. Raises OSError."""
    sketch = hashlib.sha256(size.to_bytes(8, "little"))
    for part in range(_SKETCHED_PARTS):
        offset = max(size - _SKETCHED_BYTES, 0) * part // (_SKETCHED_PARTS - 1)
        sketch.update(os.pread(descriptor, _SKETCHED_BYTES, offset))
    return sketch.hexdigest()[:16]


def _of_each(
    model: Path, names: Iterable[str], look: Callable[[BinaryIO], _Result]
) -> dict[str, _Result]:
    results = {}
    for name in names:
        with _opened(model, name) as file:
            results[name] = look(file)
    return results


def _opened(model: Path, name: str) -> BinaryIO:
    if name == ITSELF:
        return open_file(model)
    return open_inside(model.parent, name, "file of the model")


# Digests, noted in a folder next to the artefacts, each with the stamp of its file, and with the
# ctimes that this had when it was read before and found the same.

_CTIME = 2
"""The place of the ctime in a stamp."""

_MOST_CTIMES = 16


def _digest(file: BinaryIO, environment: Mapping[str, str]) -> tuple[str, Stamp]:
    """Return the digest, 32 hexadecimal digits, and the stamp before reading. Raises OSError."""
    taken_ns = time.time_ns()
    stamp = stamp_of(os.fstat(file.fileno()))
    if (listed := _listed(file, environment)) is not None:
        return listed.digest, stamp
    if store.has_whole_seconds(stamp):  # another file may have the same one
        return digest_of_file(file.fileno(), stamp[0]), stamp
    note = _note_of(stamp, environment)
    known, ctimes = _read_digest(note, stamp)
    if stamp[_CTIME] in ctimes[-1:]:
        return known, stamp
    digest = digest_of_file(file.fileno(), stamp[0])
    if store.is_settled(stamp, taken_ns):
        ctimes = [*(ctimes if digest == known else ()), stamp[_CTIME]][-_MOST_CTIMES:]
        text = json.dumps([stamp, digest, ctimes]).encode()
        with contextlib.suppress(OSError):  # nothing can be written: it is read again next time
            make_private(note.parent)
            store.publish(note, lambda file: file.write(text), survives_a_crash=False)
    return digest, stamp


def _note_of(stamp: Stamp, environment: Mapping[str, str]) -> Path:
    *_, inode, device = stamp
    return store.artefacts_directory(environment) / KNOWN / f"{device:x}-{inode:x}"


def _but_ctime(stamp: Stamp) -> Stamp:
    return [*stamp[:_CTIME], *stamp[_CTIME + 1 :]]


def _read_digest(note: Path, stamp: Stamp) -> tuple[str, list[int]]:
    """Return the noted digest of a file whose stamp is ``stamp`` but for its ctime, and the ctimes
    with which it had that digest, the last one last; none if there is no such note."""
    match store.read_note(note):
        case [list(noted), str(digest), list(ctimes)] if _but_ctime(noted) == _but_ctime(stamp):
            return digest, [each for each in ctimes if isinstance(each, int)]
    return "", []


def _listed(file: BinaryIO, environment: Mapping[str, str]) -> ListedFile | None:
    """Return the manifest's entry of a file of a copy, whose bytes may still be arriving; None:
    the file is of no copy.

    Raises InvalidModelError if the file has a copy's mode but is of no usable copy of ours, or is
    of one that is not whole and has another mode.
    """
    is_marked, path = is_kept(os.fstat(file.fileno())), _path_of(file)
    if not is_marked and not is_among_copies(path, environment):
        return None
    from brisk.copies.local import check_marked_at, listed  # imported for files of copies alone

    try:
        if not is_marked:
            check_marked_at(path, environment)
            return None
        listing = listed(path, environment)
    except ArtefactError as error:
        raise InvalidModelError(f"{path}: {error}") from error
    if listing is None:
        raise InvalidModelError(f"{path} looks like a file of a copy, and is of none")
    return listing


def _is_compared(file: BinaryIO, environment: Mapping[str, str]) -> bool:
    """Whether the digest of a file is that of its bytes: all are, but those of a copy whose
    manifest nobody has compared with them yet."""
    if not is_kept(os.fstat(file.fileno())):
        return True
    from brisk.copies.local import is_compared  # imported for files of copies alone

    return is_compared(_path_of(file), environment)


def is_among_copies(path: Path, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a file lies in the directory of copies, by its path with links followed."""
    copies = os.path.realpath(cache_directory(environment) / COPIES)
    return os.path.realpath(path).startswith(f"{copies}/")


def _path_of(file: BinaryIO) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{file.fileno()}"))


def check_listed(descriptor: int, listed: ListedFile, go_on: Callable[[], None]) -> None:
    """Compare the bytes of a copy's file, which are all here, with the digest and the sketch that
    its manifest lists.

    ``go_on``: called before each part; what it raises ends the comparison. Raises
    InvalidModelError, which names the file, if they are another file's; OSError.
    """
    found = {
        "sketch": sketch_of_file(descriptor, listed.size),
        "digest": digest_of_file(descriptor, listed.size, go_on),
    }
    for kind, actual in found.items():
        expected = getattr(listed, kind)
        if actual != expected:
            raise InvalidModelError(
                f"the manifest lists the {kind} {expected} for '{listed.name}', whose bytes have "
                f"{actual}: another model's artefacts would be used for it; publish it anew"
            )


KNOWN = "known"
"""The folder, among the artefacts, of the notes of digests."""

MOST_KNOWN = 4096


def forget_old_notes(folder: str, most: int) -> None:
    """Remove the oldest notes of a folder among the artefacts if there are more than ``most``;
    half that number stays."""
    with contextlib.suppress(OSError):
        notes = [entry.path for entry in os.scandir(store.artefacts_directory() / folder)]
        if len(notes) > most:
            for path in sorted(notes, key=os.path.getmtime)[: -most // 2]:
                os.unlink(path)


def digest_of_file(descriptor: int, size: int, go_on: Callable[[], None] = lambda: None) -> str:
    """Return 32 hexadecimal digits of the first ``size`` bytes: a digest of the SHA-256 of each
    chunk.

    Two threads compute it if there is more than one chunk and processor. ``go_on``: called before
    each chunk, by any of them; what it raises ends the computation. Raises OSError.
    """
    offsets = range(0, size, _CHUNK_BYTES)

    def chunk(offset: int) -> bytes:
        go_on()
        remaining = min(_CHUNK_BYTES, size - offset)
        digest = hashlib.sha256()
        while remaining and (data := os.pread(descriptor, min(remaining, 1 << 18), offset)):
            digest.update(data)
            remaining, offset = remaining - len(data), offset + len(data)
        return digest.digest()

    if len(offsets) > 1 and len(os.sched_getaffinity(0)) > 1:
        with ThreadPoolExecutor(2, thread_name_prefix="brisk-digest") as pool:
            chunks = list(pool.map(chunk, offsets))
    else:
        chunks = list(map(chunk, offsets))
    whole = hashlib.sha256(size.to_bytes(8, "little") + b"".join(chunks))
    return whole.hexdigest()[:32]
