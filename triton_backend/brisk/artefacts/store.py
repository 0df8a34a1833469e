"""Where artefacts lie, and how they get there: whole, once, and without disturbing anybody.

An artefact lies beside its model, in ``.brisk`` of the version's directory, so that every
container and process that mounts the repository shares it; where that cannot be written, in
``$BRISK_CACHE_DIR``. Files are written under another name, synced and renamed: a reader sees a
whole artefact or none.
"""

from __future__ import annotations

import contextlib
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
from brisk.errors import ArtefactError, InvalidModelError

DIRECTORY_NAME = ".brisk"


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """``$BRISK_CACHE_DIR``, else ``$XDG_CACHE_HOME/brisk``, else ``~/.cache/brisk``."""
    if named := environment.get("BRISK_CACHE_DIR"):
        return Path(named)
    if base := environment.get("XDG_CACHE_HOME"):
        return Path(base) / "brisk"
    return Path(environment.get("HOME") or Path.home()) / ".cache" / "brisk"


def candidate_directories(
    model: Path, environment: Mapping[str, str] = os.environ
) -> tuple[Path, Path]:
    """Where a model's artefacts may lie: beside it, and in the cache."""
    real = os.path.realpath(model)
    place = hashlib.blake2b(os.path.dirname(real).encode(), digest_size=8).hexdigest()
    return Path(real).parent / DIRECTORY_NAME, cache_directory(environment) / "artefacts" / place


def artefact_name(model: Path, fingerprint: dict[str, str]) -> str:
    return f"{Path(os.path.realpath(model)).stem}-{fingerprint_key(fingerprint)}.artefact"


def find(
    model: Path, fingerprint: dict[str, str], environment: Mapping[str, str] = os.environ
) -> Path | None:
    """The artefact file that may fit the model on this machine; None where there is none."""
    name = artefact_name(model, fingerprint)
    for directory in candidate_directories(model, environment):
        if (directory / name).is_file():
            return directory / name
    return None


def writable_directory(model: Path) -> Path:
    """The first of the candidates that can be written; made if need be. Raises OSError."""
    beside, cache = candidate_directories(model)
    for directory in (beside, cache):
        try:
            with _unseen(directory.parent if directory is beside else None):
                if not directory.is_dir():
                    directory.mkdir(mode=0o755, parents=directory is cache, exist_ok=True)
                    set_back(directory, model)
            if os.access(directory, os.W_OK | os.X_OK):
                return directory
        except OSError:
            if directory is cache:
                raise
    raise PermissionError(f"neither {beside} nor {cache} can be written")


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
        publish(_note_path(artefact), lambda file: file.write(text.encode()), artefact)
    except OSError:
        return  # read-only: the digests are compared again at the next start


def publish(target: Path, write: Callable[[BinaryIO], object], like: Path | None = None) -> None:
    """Make ``target`` what ``write`` writes, whole or not at all. Raises OSError.

    The times of its directory, and its own where ``like`` exists, are set back: Triton takes a
    newer file in an entry for a changed model and would load it again.
    """
    directory = target.parent
    with _unseen(directory):
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=directory)
        try:
            with os.fdopen(descriptor, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o644)
            set_back(Path(name), like)
            os.rename(name, target)
        except BaseException:
            os.unlink(name)
            raise
    _sync(directory)


def set_back(path: Path, like: Path | None) -> None:
    """Give ``path`` the times of ``like``, where that exists."""
    if like is not None and like.exists():
        status = like.stat()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


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


@contextmanager
def _unseen(directory: Path | None) -> Iterator[None]:
    """Set the directory's times back afterwards, as far as they are ours to set."""
    if directory is None:
        yield
        return
    status = os.stat(directory)
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):  # another user's directory that we may write
            os.utime(directory, ns=(status.st_atime_ns, status.st_mtime_ns))


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
