"""Where artefacts lie, and how they get there: whole, once, and without disturbing anybody.

Artefacts lie in the cache directory and nowhere else: what is in them is mapped, indexed and
computed with, so nobody but the runtime's user may write it, and who writes to the model
repository is somebody else. Files are written under another name, synced and renamed: a reader
sees a whole artefact or none.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from brisk.artefacts.fingerprint import fingerprint_key
from brisk.artefacts.identity import (
    ModelIdentity,
    Stamp,
    are_settled,
    identify,
    relative_name,
    stamps,
)
from brisk.artefacts.place import artefacts_directory
from brisk.errors import ArtefactError, InvalidModelError
from brisk.ownership import make_private


def artefact_directory(model: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Where a model's artefacts are; it may not be there."""
    folder = os.path.dirname(os.path.realpath(model))
    place = hashlib.blake2b(os.fsencode(folder), digest_size=8).hexdigest()
    return artefacts_directory(environment) / place


def artefact_name(model: Path, fingerprint: dict[str, str]) -> str:
    return f"{Path(os.path.realpath(model)).stem}-{fingerprint_key(fingerprint)}.artefact"


def find(
    model: Path, fingerprint: dict[str, str], environment: Mapping[str, str] = os.environ
) -> Path | None:
    """The artefact file that may fit the model on this machine; None where there is none."""
    found = artefact_directory(model, environment) / artefact_name(model, fingerprint)
    return found if found.is_file() else None


def writable_directory(model: Path) -> Path:
    """Where the model's artefacts are, made if need be.

    Raises PermissionError where it cannot be written, or others can write it, too; OSError.
    """
    directory = artefact_directory(model)
    make_private(directory)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(f"{directory} cannot be written")
    return directory


def check_identity(artefact: Path, model: Path, identity: ModelIdentity) -> None:
    """Whether ``artefact`` was made of the model's present files.

    Raises ArtefactError where not. Files in another state than the one noted beside the artefact
    are read and digested, and the new state is noted.
    """
    directory = Path(os.path.realpath(model)).parent
    names = [relative_name(name) for name in identity.digests]
    if Path(os.path.realpath(model)).name not in names:
        raise ArtefactError(f"{artefact}: made of another file")
    try:
        present = stamps(directory, names)
        if _noted(artefact, identity) == present:
            return
        found = identify(directory, names)
    except (OSError, InvalidModelError) as error:
        raise ArtefactError(f"{artefact}: a file of its model is missing: {error}") from error
    if found != identity:
        raise ArtefactError(f"{artefact}: the model has changed since it was made")
    note_state(artefact, identity, present)


def note_state(artefact: Path, identity: ModelIdentity, present: Mapping[str, Stamp]) -> None:
    """Note beside the artefact in which state its model's files had these digests.

    Nothing is noted where the files changed just now, or where nothing can be written.
    """
    if not are_settled(present):
        return
    text = json.dumps({"digests": dict(identity.digests), "stamps": dict(present)})
    try:
        publish(_note_path(artefact), lambda file: file.write(text.encode()))
    except OSError:
        return  # read-only: the digests are compared again at the next start


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
        _sync(directory)


@contextmanager
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


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _note_path(artefact: Path) -> Path:
    return artefact.with_suffix(".state")


def _noted(artefact: Path, identity: ModelIdentity) -> Mapping[str, Stamp] | None:
    try:
        note = json.loads(_note_path(artefact).read_text())
        known: Mapping[str, Stamp] = note["stamps"]
        return known if note["digests"] == dict(identity.digests) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
