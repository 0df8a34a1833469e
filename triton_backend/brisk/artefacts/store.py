"""Where artefacts lie, and how they get there: whole, once, and without disturbing anybody.

Artefacts lie in the cache directory and nowhere else: what is in them is mapped, indexed and
computed with, so nobody but the runtime's user may write it, and who writes to the model
repository is somebody else. Files are written under another name, synced and renamed: a reader
sees a whole artefact or none.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, TypeVar

from brisk.artefacts.checksum import checksum_of_file
from brisk.errors import ArtefactError, InvalidModelError
from brisk.ownership import make_private
from brisk.paths import Stamp, open_file, open_inside, stamp_of
from brisk.settings import cache_directory

ITSELF = ""
"""Stands for the model among the names of its files, as no file's name does: other data is named
as in the model, in the folder of its path."""

_Found = TypeVar("_Found")

RACY_NS = 50_000_000
"""A file changed this shortly ago may change again without its times showing it."""

_CPU_FIELDS = ("vendor_id", "model name", "flags", "Features", "CPU implementer", "CPU part")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def artefacts_directory(environment: Mapping[str, str] = os.environ) -> Path:
    return cache_directory(environment) / "artefacts"


def artefact_directory(model: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Where a model's artefacts are; it may not be there."""
    folder = os.path.dirname(os.path.realpath(model))
    place = hashlib.blake2b(os.fsencode(folder), digest_size=8).hexdigest()
    return artefacts_directory(environment) / place


def writable_directory(model: Path) -> Path:
    """Where the model's artefacts are, made if need be.

    Raises PermissionError where it cannot be written, or others can write it, too; OSError.
    """
    directory = artefact_directory(model)
    make_private(directory)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(f"{directory} cannot be written")
    return directory


# Which model an artefact was made of: the content of its files, and a cheap stamp of their state.
#
# The digests decide. Reading 100 MB again to digest them takes 30 ms, so a stamp (size, times,
# inode) that was seen together with a digest vouches for it until it changes, as it does in each
# new container.


def identify(model: Path, names: Iterable[str]) -> dict[str, str]:
    """The checksums of the model's files, which tell one model from another, by their names.

    Raises OSError, and InvalidModelError as ``open_inside``.
    """
    return _of_each(model, names, checksum_of_file)


def stamps(model: Path, names: Iterable[str]) -> dict[str, Stamp]:
    """The files' present states. Raises as ``identify``."""
    return _of_each(model, names, lambda file: stamp_of(os.fstat(file.fileno())))


def written_since(model: Path, seen: Mapping[str, Stamp]) -> Path | None:
    """A file of the model that was written to since it was in the state ``seen``, if any.

    One that has gone or was replaced was not.
    """
    for name, stamp in seen.items():
        try:
            present = stamps(model, [name])[name]
        except (OSError, InvalidModelError):
            continue
        # size and time of a change, and which file it is; links to it come and go
        if present[3:] == stamp[3:] and present[:2] != stamp[:2]:
            return model if name == ITSELF else model.parent / name
    return None


def _of_each(
    model: Path, names: Iterable[str], look: Callable[[BinaryIO], _Found]
) -> dict[str, _Found]:
    found = {}
    for name in names:
        what = "file of the model"
        opened = open_file(model) if name == ITSELF else open_inside(model.parent, name, what)
        with opened as file:
            found[name] = look(file)
    return found


def are_settled(states: Mapping[str, Stamp]) -> bool:
    """Whether every later change of the files will show in their stamps."""
    latest_ns = max(max(stamp[1], stamp[2]) for stamp in states.values())
    return time.time_ns() - latest_ns > RACY_NS


def check_identity(artefact: Path, model: Path, digests: Mapping[str, str]) -> Mapping[str, Stamp]:
    """The present ``stamps`` of the files that ``artefact`` was made of.

    ``digests``: as of ``identify``. Files in another state than the one noted beside the artefact
    are read and digested, and the new state is noted. Raises ArtefactError where the artefact was
    made of others.
    """
    if ITSELF not in digests:
        raise ArtefactError(f"{artefact}: made of another file")
    try:
        present = stamps(model, digests)
        if _noted(artefact.with_suffix(".state")) == _state(digests, present):
            return present
        found = identify(model, digests)
    except (OSError, InvalidModelError) as error:
        raise ArtefactError(f"{artefact}: a file of its model is missing: {error}") from error
    if found != digests:
        raise ArtefactError(f"{artefact}: the model has changed since it was made")
    note_state(artefact, digests, present)
    return present


def note_state(artefact: Path, digests: Mapping[str, str], present: Mapping[str, Stamp]) -> None:
    """Note beside the artefact in which state its model's files had these digests.

    Nothing is noted where the files changed just now, or where nothing can be written.
    """
    _note(artefact.with_suffix(".state"), _state(digests, present), present)


def publish(
    target: Path, write: Callable[[BinaryIO], object], *, survives_a_crash: bool = True
) -> None:
    """Make ``target`` what ``write`` writes, whole or not at all. Raises OSError.

    ``survives_a_crash`` False: of the machine; nothing is waited for.
    """
    directory = target.parent
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=directory)  # of mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            if survives_a_crash:
                os.fsync(file.fileno())
        os.rename(name, target)
    except BaseException:
        os.unlink(name)
        raise
    if survives_a_crash:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def building(directory: Path) -> Iterator[bool]:
    """False where another process builds an artefact there now; else hold the right to."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)


def _state(digests: Mapping[str, str], present: Mapping[str, Stamp]) -> dict[str, object]:
    return {"digests": dict(digests), "stamps": dict(present)}


def _noted(note: Path) -> object:
    """What stands in ``note``; None where there is none."""
    try:
        return json.loads(note.read_text())
    except (OSError, ValueError, RecursionError):
        return None


def _note(
    note: Path, what: object, seen: Mapping[str, Stamp], *, survives_a_crash: bool = True
) -> None:
    """Let ``what`` stand in ``note``, unless a later change of ``seen`` might not show."""
    if are_settled(seen):
        text = json.dumps(what).encode()
        with contextlib.suppress(OSError):  # read-only: it is compared again at the next start
            publish(note, lambda file: file.write(text), survives_a_crash=survives_a_crash)


# Artefacts whose weights were all compared with their checksums since the machine started.
#
# What was read then is in the page cache, or is read again from the same file; whoever writes to
# it changes its times. So a start need not read 100 MB to know what another one has seen: it took
# 8 of ResNet-50's 51 ms. After the next boot, and on a copy, they are compared again, beside
# reading them from the disk.


def is_verified(artefact: Path, status: os.stat_result) -> bool:
    """Whether ``note_verified`` was called since this boot, of the file as it is (``status``)."""
    noted = _noted(artefact.with_suffix(".verified"))
    return noted is not None and noted == _verified(status)


def note_verified(artefact: Path, status: os.stat_result) -> None:
    """All its weights were compared. ``status``: of the file, before that.

    Nothing is noted where it changed just now, or where nothing can be written.
    """
    seen = {artefact.name: stamp_of(status)}
    note = artefact.with_suffix(".verified")
    with contextlib.suppress(OSError):
        _note(note, _verified(status), seen, survives_a_crash=False)


def _verified(status: os.stat_result) -> dict[str, object]:
    return {"boot": _BOOT.read_text().strip(), "stamp": stamp_of(status)}


@functools.cache
def processor() -> str:
    """Vendor, model and a digest of the instruction sets: an artefact is made for one of them."""
    fields: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in _CPU_FIELDS:
                fields.setdefault(name.strip(), " ".join(sorted(value.split())))
            if not line.strip():
                break
    except OSError:
        return platform.machine()
    flags = fields.pop("flags", "") + fields.pop("Features", "")
    digest = hashlib.blake2b(flags.encode(), digest_size=8).hexdigest()
    return f"{platform.machine()} {' '.join(fields.values())} flags {digest}"
