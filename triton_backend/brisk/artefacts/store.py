"""The directory of artefacts, and how they get there: whole, once, without disturbing readers.

Artefacts are in the cache directory and nowhere else: their content is mapped, indexed and
computed with, so only the runtime's user may write it, and the model repository has other writers.
Files are written under another name, synced and renamed: a reader sees a whole artefact or none.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from brisk.paths import Stamp, stamp_of
from brisk.settings import cache_directory

RACY_NS = 50_000_000
"""The age of a change below which a file may change again without its times showing it."""

RACY_SECONDS_NS = 2_000_000_000
"""The same on a file system that keeps whole seconds, or every other one."""

VERIFIED = ".verified"
"""The suffix of the note next to an artefact that all its weights were compared."""

_CPU_FIELDS = ("vendor_id", "model name", "flags", "Features", "CPU implementer", "CPU part")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def artefacts_directory(environment: Mapping[str, str] = os.environ) -> Path:
    return cache_directory(environment) / "artefacts"


def is_settled(stamp: Stamp, taken_ns: int) -> bool:
    """Whether every change of the file will show in its stamp that comes after ``taken_ns``, when
    the stamp was about to be taken."""
    racy_ns = RACY_SECONDS_NS if has_whole_seconds(stamp) else RACY_NS
    return taken_ns - max(stamp[1], stamp[2]) > racy_ns


def has_whole_seconds(stamp: Stamp) -> bool:
    return all(time_ns % 10**9 == 0 for time_ns in stamp[1:3])


def publish(
    target: Path, write: Callable[[BinaryIO], object], *, survives_a_crash: bool = True
) -> None:
    """Replace ``target`` by what ``write`` writes, whole or not at all. Raises OSError.

    ``survives_a_crash`` False: nothing is synced, so a crash of the machine may lose the file.
    """
    import tempfile  # a start that finds all it needs writes nothing

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
        sync_directory(directory)


def sync_directory(directory: str | Path) -> None:
    """Bring the names in a directory to the disk. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


FOR_ALL_MACHINES = os.O_RDWR | os.O_CREAT


@contextlib.contextmanager
def locked(path: Path, flags: int = os.O_RDONLY) -> Iterator[bool]:
    """Hold an exclusive lock on the file or folder; yield False if there is another lock on it.

    A process locks an artefact that it maps, and a folder of artefacts that it builds in: on NFS,
    no other machine sees these. It sees that of a file opened with the ``flags`` FOR_ALL_MACHINES,
    which is made where there is none. Raises OSError.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)


def read_note(note: Path) -> object:
    """Return the JSON in ``note``; None: there is none."""
    try:
        return json.loads(note.read_text())
    except (OSError, ValueError, RecursionError):
        return None


# Artefacts whose weights were all compared with their checksums since the machine started.
#
# What was read then is in the page cache, or is read again from the same file; writing to that
# changes its times. So a start need not read 100 MB that an earlier one has compared, which takes
# 8 of ResNet-50's 51 ms. After the next boot, and on a copy, they are compared again, while they
# are read from the disk.


def is_verified(artefact: Path, status: os.stat_result) -> bool:
    """Whether ``note_verified`` was called since this boot for the file in its state
    ``status``."""
    noted = read_note(artefact.with_suffix(VERIFIED))
    return noted is not None and noted == _verified(status)


def note_verified(artefact: Path, status: os.stat_result, taken_ns: int) -> None:
    """Note that all weights of the artefact were compared. ``status``: the file's before that, at
    ``taken_ns``.

    Nothing is noted if the file changed just now, or if nothing can be written.
    """
    if is_settled(stamp_of(status), taken_ns):
        text = json.dumps(_verified(status)).encode()
        with contextlib.suppress(OSError):
            note = artefact.with_suffix(VERIFIED)
            publish(note, lambda file: file.write(text), survives_a_crash=False)


def _verified(status: os.stat_result) -> dict[str, object]:
    return {"boot": _BOOT.read_text().strip(), "stamp": stamp_of(status)}


@functools.cache
def processor() -> str:
    """Return vendor, model and a digest of the instruction sets: an artefact is made for one
    processor."""
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
