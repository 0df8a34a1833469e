"""The disk space of copies: the least recently used copies are removed for a new one.

A user of a copy holds a shared lock on its manifest (``copies.local.LocalCopy``): a locked copy
is not removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from brisk.artefacts.store import publish, read_note
from brisk.copies.local import FORMS_FOLDER, ORIGIN, PROGRESS, path_in, progress_header
from brisk.copies.manifest import Manifest, read_manifest
from brisk.copies.remote import MANIFEST
from brisk.errors import ArtefactError, InvalidModelError, UnavailableError
from brisk.ownership import make_private
from brisk.settings import CACHE_LIMIT
from brisk.sourcing.arriving import ArrivingCopy, reserve, write_small
from brisk.sourcing.log import LOGGER
from brisk.sourcing.policies.stretches import Layout

_DRAFT = ".manifest.json"
_RATES = "rates.json"
_MOST_RATES = 256
_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock for making, opening or removing copies in ``directory``. Raises OSError."""
    make_private(directory)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class KeptCopy(NamedTuple):
    """A copy in a cache directory."""

    folder: Path
    size_bytes: int
    """The size on disk, without forms that are also artefacts."""
    used_s: float
    """The time of the last use, in seconds since the epoch."""
    is_held: bool


def to_remove(
    copies: Sequence[KeptCopy], needed_bytes: int, limit_bytes: int | None
) -> list[KeptCopy] | None:
    """Return which copies to remove for a new one of ``needed_bytes``, least recently used first.

    None if removing all copies that are not in use would not be enough. Pure.
    """
    if limit_bytes is None:
        return []
    over_bytes = sum(each.size_bytes for each in copies) + needed_bytes - limit_bytes
    chosen = []
    for each in sorted(copies, key=lambda each: (each.used_s, each.folder)):
        if over_bytes <= 0:
            break
        if not each.is_held:
            chosen.append(each)
            over_bytes -= each.size_bytes
    return chosen if over_bytes <= 0 else None


def make_copy(folder: Path, text: bytes, manifest: Manifest) -> None:
    """Make the empty copy of a model: files of their full size, without content.

    ``text``: the manifest's. On failure nothing is left, and OSError is raised. Precondition: no
    other process makes a copy in the folder.
    """
    make_private(folder.parent)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)  # what was begun and is no copy
    try:
        make_private(folder / FORMS_FOLDER)
        for number in (*manifest.own, manifest.gathered):
            path = path_in(folder, manifest, number)
            make_private(path.parent)
            reserve(path, manifest.files[number].size)
        write_small(folder / PROGRESS, progress_header() + bytes(Layout(manifest).count))
        write_small(folder / _DRAFT, text)
        os.rename(folder / _DRAFT, folder / MANIFEST)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def make_with_room(folder: Path, text: bytes, manifest: Manifest, limit_bytes: int | None) -> None:
    """Call ``make_copy`` after removing unfinished copies, and others for it. Precondition:
    ``locked``.

    Raises OSError; UnavailableError, which names the needed bytes, if there is still no room. Then
    no new copy is left.
    """
    needed_bytes = sum(manifest.files[number].size for number in manifest.own)
    text_needed = f"the model needs {needed_bytes} bytes ({needed_bytes / 1e6:.0f} MB)"
    _remove_unfinished(folder.parent)
    chosen = to_remove(kept_copies(folder.parent), needed_bytes, limit_bytes)
    if chosen is None:
        raise UnavailableError(
            f"{text_needed} in {folder.parent}, where copies may take "
            f"{(limit_bytes or 0) >> 20} MiB ({CACHE_LIMIT}) with those that are in use"
        )
    for each in chosen:
        remove(each.folder)
    _retried(lambda: make_copy(folder, text, manifest), folder.parent, needed_bytes, text_needed)


def _retried(make: Callable[[], None], base: Path, needed_bytes: int, needed: str) -> None:
    """Call ``make``; each time the disk is full, remove the oldest unused copy and retry.

    Raises UnavailableError if no copy can be removed, or removing all would not be enough; OSError
    for other failures.
    """
    while True:
        try:
            make()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            idle = [each for each in kept_copies(base) if not each.is_held]
            status = os.statvfs(base)
            free_bytes = status.f_bavail * status.f_frsize
            idle_bytes = sum(each.size_bytes for each in idle)
            oldest = min(idle, key=lambda each: each.used_s, default=None)
            is_enough = free_bytes + idle_bytes >= needed_bytes
            if oldest is None or not is_enough or not remove(oldest.folder):
                text = f"{needed} in {base}, and {free_bytes} are free"
                text += f", {idle_bytes} in copies that nobody uses" if idle else ""
                raise UnavailableError(f"{text}: {error.strerror}") from error
        else:
            return


def kept_copies(base: Path) -> list[KeptCopy]:
    """Return all copies of a cache directory. Precondition: ``locked``: looking whether a copy is
    held keeps a courier from opening it for a moment."""
    copies = []
    with contextlib.suppress(OSError):
        for folder in sorted(base.iterdir()):
            with contextlib.suppress(OSError):
                if not folder.is_dir() or not (folder / MANIFEST).exists():
                    continue
                status = (folder / MANIFEST).stat()
                used_s = max(status.st_mtime, status.st_atime)
                copies.append(KeptCopy(folder, _size(folder), used_s, _is_held(folder)))
    return copies


def _remove_unfinished(base: Path) -> None:
    """Remove what killed couriers left. Precondition: ``locked``, else it is being made."""
    with contextlib.suppress(OSError):
        for folder in base.iterdir():
            if folder.is_dir() and not (folder / MANIFEST).exists():
                shutil.rmtree(folder, ignore_errors=True)


def note_use(folder: Path) -> None:
    """Record the current time as the copy's last use."""
    with contextlib.suppress(OSError):
        os.utime(folder / MANIFEST)


def remove(folder: Path) -> bool:
    """Remove a copy; return False if it is in use or cannot be removed. Precondition:
    ``locked``."""
    try:
        descriptor = os.open(folder / MANIFEST, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / MANIFEST).unlink()  # first: without it there is no copy
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    LOGGER.info(f"the copy {folder.name[:16]} was removed: nobody uses it")
    return True


def _is_held(folder: Path) -> bool:
    descriptor = os.open(folder / MANIFEST, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _size(folder: Path) -> int:
    """Return the copy's bytes on disk; a form that is also an artefact is not counted."""
    total = 0
    for above, _, names in os.walk(folder):
        for name in names:
            status = os.lstat(os.path.join(above, name))
            total += status.st_blocks * 512 if status.st_nlink == 1 else 0
    return total


def open_present(folder: Path) -> ArrivingCopy | None:
    """Open the copy in a folder; return None if there is no usable one. Raises OSError."""
    with locked(folder.parent):
        return _opened(folder)


def open_compared(folder: Path) -> ArrivingCopy | None:
    """Open a copy, and compare it with its digests after a boot; None if there is no usable one.
    Blocks."""
    try:
        if not folder.is_dir():
            return None
        with locked(folder.parent):
            copy = ArrivingCopy(folder)
    except (OSError, ArtefactError, InvalidModelError, UnavailableError):
        return None
    try:
        if not copy.is_trusted:
            for _ in copy.verify():
                pass
    except OSError:
        copy.close()
        return None
    return copy


def _opened(folder: Path) -> ArrivingCopy | None:
    if not (folder / MANIFEST).exists():
        return None
    try:
        copy = ArrivingCopy(folder)
    except (ArtefactError, BlockingIOError) as error:
        LOGGER.warning(f"{error}; it is made anew where nobody uses it")
        return None
    note_use(folder)
    return copy


def open_or_make(folder: Path, text: bytes, limit_bytes: int | None) -> ArrivingCopy:
    """Open the copy in a folder; make it unless it exists.

    ``text``: its manifest's. Raises what ``make_with_room`` raises, and UnavailableError if the
    copy cannot be used and other processes still do: they may have mapped its files.
    """
    with locked(folder.parent):
        present = _opened(folder)
        if present is None:
            if (folder / MANIFEST).exists() and _is_held(folder):
                raise UnavailableError(
                    f"{folder} is damaged, as the server's log says, and processes use it; it is "
                    "made anew once they have unloaded its model"
                )
            manifest = read_manifest(text, folder.name)
            make_with_room(folder, text, manifest, limit_bytes)
            present = ArrivingCopy(folder)
        return present


def read_origin(folder: Path) -> str:
    """Return the URL by which the copy was last opened; empty if unknown."""
    try:
        return (folder / ORIGIN).read_text()
    except OSError:
        return ""


def note_origin(folder: Path, url: str) -> None:
    if read_origin(folder) != url:
        draft = folder / f".{ORIGIN}"
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
            write_small(draft, url.encode())
            os.rename(draft, folder / ORIGIN)


def read_rates(base: Path) -> dict[str, float]:
    """Return the noted best bytes/s of sources by name; empty if they cannot be read."""
    noted = read_note(base / _RATES)
    if not isinstance(noted, dict):
        return {}
    return {
        str(name): float(rate)
        for name, rate in noted.items()
        if isinstance(rate, (int, float)) and 0 < rate < 1e12
    }


def write_rates(base: Path, rates: dict[str, float]) -> None:
    newest = dict(list(rates.items())[-_MOST_RATES:])
    text = json.dumps({name: round(rate) for name, rate in newest.items()}).encode()
    with contextlib.suppress(OSError):
        publish(base / _RATES, lambda file: file.write(text), survives_a_crash=False)
