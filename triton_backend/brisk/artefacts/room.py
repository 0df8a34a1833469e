"""The disk space of artefacts: those that were used least recently are removed for new ones.

A process that maps an artefact holds a shared lock on it. A locked artefact stays: removing it
would free nothing before its last user ends, and the next start would make it again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from brisk.artefacts import skeletons, store
from brisk.artefacts.content import KNOWN, MOST_KNOWN, forget_old_notes, sketch_of
from brisk.errors import BriskError
from brisk.ownership import make_private
from brisk.paths import listed, open_file
from brisk.settings import cache_limit_bytes

USED = ".used"
"""The suffix of an empty file next to an artefact, whose time is that of the last opening."""

ARTEFACT = ".segments"

DEFAULT_SHARE = 0.25
"""The share of their file system that artefacts may take unless something else is set."""

REFUSED = "refused"
"""The folder of notes, named by the models' sketches, of the sizes of forms too large to keep."""

MOST_REFUSED = 1024

DRAFT = ".draft-"
"""The prefix of folders in a folder of artefacts that a builder writes parts of a form into."""

SWEPT, SWEEP_S = "swept", 600.0
"""The file in the directory of artefacts that was touched when remnants were last removed, and the
time from which on that is done again."""

COMPLETE = 0o400
"""The mode of a draft that is complete and has room, and of what is published: it is replaced as a
whole or not at all."""

_NOTES = frozenset({KNOWN, REFUSED, skeletons.NOTED})
"""Folders among those of the sketches that hold notes, by the thousand, and no artefacts."""

_DIGITS = 20


class NoRoomError(OSError):
    """There is no space for an artefact of ``needed_bytes``."""

    def __init__(self, limit_bytes: int, least_bytes: int, needed_bytes: int) -> None:
        super().__init__(
            errno.ENOSPC,
            f"artefacts may take {limit_bytes >> 20} MiB (BRISK_CACHE_MIB): with this one those "
            f"that are in use take {_mib(least_bytes)}",
        )
        self.needed_bytes = needed_bytes


def _mib(size_bytes: int) -> int:
    return -(-size_bytes // 2**20)


@dataclass(frozen=True, slots=True)
class KeptArtefact:
    """An artefact in the cache directory."""

    path: Path
    size_bytes: int
    """The size on disk."""
    used_s: float
    """The time when it was last opened, or made, since the epoch."""


def kept_artefacts(environment: Mapping[str, str] = os.environ) -> list[KeptArtefact]:
    """Return all artefacts of the cache directory, the one that was used least recently first."""
    artefacts = []
    for path in (path for folder in _folders(environment) for path in listed(folder)):
        if path.suffix == ARTEFACT:
            with contextlib.suppress(OSError):  # another process has removed it just now
                status = path.stat()
                artefacts.append(KeptArtefact(path, status.st_size, _used_s(path, status)))
    return sorted(artefacts, key=lambda each: (each.used_s, each.path))


def _folders(environment: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """Yield the folders of artefacts, which lie in those of their models' sketches."""
    for sketch in listed(store.artefacts_directory(environment)):
        if sketch.name not in _NOTES:
            yield from listed(sketch)


def note_use(artefact: Path) -> None:
    """Note that the artefact was used just now; if that cannot be written it counts as used when
    it was made."""
    note = artefact.with_suffix(USED)
    with contextlib.suppress(OSError):
        os.close(os.open(note, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        os.utime(note)


def is_held(artefact: Path) -> bool:
    """Whether some process maps the artefact. Raises FileNotFoundError if it is gone, OSError if
    that is unknown."""
    with store.locked(artefact) as is_ours:
        return not is_ours


def remove(artefact: Path) -> bool:
    """Remove an artefact with its notes; return False if some process maps it, or it is gone."""
    try:
        with store.locked(artefact) as is_ours:
            if not is_ours:
                return False
            artefact.unlink()
    except OSError:
        return False
    for suffix in (USED, store.VERIFIED):
        with contextlib.suppress(OSError):
            artefact.with_suffix(suffix).unlink()
    tidy(artefact.parent)
    return True


def limit(environment: Mapping[str, str] = os.environ) -> int:
    """Return the most bytes that all artefacts may take: the setting, else a share of the disk.

    Raises InvalidConfigurationError, OSError if there is no directory of artefacts.
    """
    limit_bytes = cache_limit_bytes(environment)
    if limit_bytes is None:
        status = os.statvfs(store.artefacts_directory(environment))
        limit_bytes = int(status.f_blocks * status.f_frsize * DEFAULT_SHARE)
    return limit_bytes


def check_room(needed_bytes: int) -> None:
    """Check that space can be made for an artefact of ``needed_bytes``.

    Raises NoRoomError if artefacts that processes map take too much.
    """
    limit_bytes = limit()
    with contextlib.suppress(OSError), _tally().open("rb") as tally:
        if _read(tally, limit_bytes) + needed_bytes <= limit_bytes:
            return
    _check(needed_bytes, kept_artefacts(), limit_bytes)


def make_room(needed_bytes: int, draft: int | None = None) -> None:
    """Remove artefacts until one of ``needed_bytes``, about to be published, fits within the
    limit.

    ``draft``: the descriptor of its file, which is made read-only: then others count it, too,
    though it is not published yet. Raises NoRoomError like ``check_room``, and OSError; nothing is
    removed then.
    """
    limit_bytes = limit()
    with open(os.open(_tally(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as tally:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(tally, fcntl.LOCK_EX)
        total_bytes = _read(tally, limit_bytes) + needed_bytes
        if total_bytes > limit_bytes:
            total_bytes = _count_and_remove(needed_bytes, limit_bytes)
        tally.seek(0)
        tally.write(b"%0*d" % (_DIGITS, total_bytes))
        tally.truncate()
        if draft is not None:
            os.fchmod(draft, COMPLETE)
    sweep_now_and_then()
    forget_old_notes(KNOWN, MOST_KNOWN)
    forget_old_notes(REFUSED, MOST_REFUSED)
    skeletons.forget_unused()


def note_refused(folder: Path, needed_bytes: int | None) -> None:
    """Note that an artefact of the models of ``folder`` was too large to keep; ``needed_bytes``
    None: there is one again.

    A note that cannot be written is left out without a message.
    """
    notes = folder.parent.parent / REFUSED
    note = notes / folder.parent.name
    with contextlib.suppress(OSError):
        if needed_bytes is None:
            note.unlink(missing_ok=True)
        else:
            make_private(notes)
            text = str(needed_bytes).encode()
            store.publish(note, lambda file: file.write(text), survives_a_crash=False)


def refusal_of(model: Path, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return a text that the model's prepared form was not kept for its size, and what would help;
    None: no form was refused, or it is unknown."""
    try:
        with open_file(model) as file:
            sketch = sketch_of(file, environment)
        notes = store.artefacts_directory(environment) / REFUSED
        needed_bytes = int((notes / sketch).read_text())
        limit_bytes = limit(environment)
    except (OSError, ValueError, BriskError):
        return None
    others_bytes = sum(each.size_bytes for each in kept_artefacts(environment))
    return (
        f"it was not kept for its size: it takes {_mib(needed_bytes)} MiB, the others here "
        f"{_mib(others_bytes)}, and all together may take {limit_bytes >> 20} "
        f"(BRISK_CACHE_MIB={_mib(needed_bytes + others_bytes)} has room for it)"
    )


def _tally() -> Path:
    """Return the file with an upper bound of the bytes of all artefacts.

    The bound includes artefacts that were removed since the last count, and those that were never
    published. Counting takes longer the more there are, so it is done only when they may be too
    many.
    """
    return store.artefacts_directory() / "taken"


def _read(tally: BinaryIO, limit_bytes: int) -> int:
    """Return the number in the file; more than the limit if it holds no number."""
    text = tally.read(_DIGITS)
    return int(text) if text.isdigit() else limit_bytes + 1


def _count_and_remove(needed_bytes: int, limit_bytes: int) -> int:
    sweep()  # of a killed builder's complete draft nothing comes any more
    drafts_bytes = _drafts_bytes()
    artefacts = kept_artefacts()  # behind the drafts: one that is published now is counted twice
    _check(needed_bytes, artefacts, limit_bytes, drafts_bytes)
    total_bytes = needed_bytes + drafts_bytes + sum(each.size_bytes for each in artefacts)
    for each in artefacts:
        if total_bytes <= limit_bytes:
            break
        if remove(each.path):
            total_bytes -= each.size_bytes
            note_refused(each.path.parent, each.size_bytes)
    return total_bytes


def _drafts_bytes() -> int:
    """Return the bytes of drafts that have room already and are about to be published."""
    total_bytes = 0
    for path in (path for folder in _folders() for path in listed(folder)):
        if path.name.startswith(".") and f"{ARTEFACT}." in path.name:
            with contextlib.suppress(OSError):  # it is published just now
                status = path.stat()
                if stat.S_IMODE(status.st_mode) == COMPLETE:
                    total_bytes += status.st_size
    return total_bytes


def _check(
    needed_bytes: int,
    artefacts: Sequence[KeptArtefact],
    limit_bytes: int,
    drafts_bytes: int = 0,
) -> None:
    taken_bytes = needed_bytes + drafts_bytes
    if taken_bytes + sum(each.size_bytes for each in artefacts) <= limit_bytes:
        return
    held = (each for each in artefacts if _stays(each.path))
    least_bytes = taken_bytes + sum(each.size_bytes for each in held)
    if least_bytes > limit_bytes:
        raise NoRoomError(limit_bytes, least_bytes, needed_bytes)


def _stays(artefact: Path) -> bool:
    try:
        return is_held(artefact)
    except FileNotFoundError:
        return False
    except OSError:  # a file system that does not say
        return True


def _used_s(artefact: Path, status: os.stat_result) -> float:
    try:
        return artefact.with_suffix(USED).stat().st_mtime
    except OSError:
        return status.st_mtime


def tidy(folder: Path) -> None:
    """Remove a folder without artefacts that no process builds in, and its parent if that is
    empty."""
    with contextlib.suppress(OSError):
        if _has_artefacts(folder):
            return
        with store.locked(folder) as is_ours:
            if is_ours and not _has_artefacts(folder):  # one may have come before the lock
                remove_remnants(folder)
                for file in folder.iterdir():
                    file.unlink()
                folder.rmdir()
                folder.parent.rmdir()


def _has_artefacts(folder: Path) -> bool:
    return any(folder.glob(f"*{ARTEFACT}"))


# A builder that was killed leaves what it had written: as much as the form takes, and more.


def sweep_now_and_then() -> None:
    """``sweep``, which looks into every folder, unless a process has done so lately."""
    stamp = store.artefacts_directory() / SWEPT
    with contextlib.suppress(OSError):
        if stamp.exists() and abs(time.time() - stamp.stat().st_mtime) < SWEEP_S:
            return
        stamp.touch(mode=0o600)
        sweep()


def sweep() -> None:
    """Remove what killed builders left, in all folders that no process builds in; one that holds
    nothing else then goes, too."""
    for folder in [each for each in _folders() if any(map(_is_remnant, listed(each)))]:
        with contextlib.suppress(OSError), store.locked(folder) as is_ours:
            if is_ours:
                remove_remnants(folder)
        tidy(folder)


def remove_remnants(folder: Path) -> None:
    """Remove what killed builders left in ``folder``. Precondition: the caller has it locked.

    What cannot be removed stays without a message.
    """
    for each in filter(_is_remnant, folder.iterdir()):
        if each.name.startswith(DRAFT):
            import shutil  # imported where there is one: a start has none

            shutil.rmtree(each, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                each.unlink()


def _is_remnant(path: Path) -> bool:
    """Whether a builder names so what it writes, until it publishes the form."""
    name = path.name
    return name.startswith(DRAFT) or (name.startswith(".") and f"{ARTEFACT}." in name)
