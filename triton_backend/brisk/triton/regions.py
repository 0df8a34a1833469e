"""The shared-memory regions of Triton's stubs in /dev/shm: their owners, and removal of unused
ones.

Triton makes one per model instance, named by a prefix and a random number, and removes it when the
model is unloaded. If Triton is killed, its stubs notice and remove theirs. If these are killed,
too (a container out of memory, a killed process group), the regions stay until the machine is
rebooted. So servers started by Brisk have a prefix that names their owning process, and the next
start removes the regions of owners that have ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from brisk.protocol.stub_process import birth_of, has_ended

SHARED_MEMORY = Path("/dev/shm")
PREFIX_OPTION = "shm-region-prefix-name"

_OWNED = re.compile(r"brisk_server_(\d+)_(\d+)_(\d+)_")
_ANY = re.compile(r"brisk_server_\d+_|triton_\w+_backend_shm_region_")
"""The beginnings of regions' names: Brisk's, and those of Python backends without a prefix of
their own (``triton_<backend>_backend_…``)."""


class StubRegion(NamedTuple):
    """A shared-memory region, which takes ``size_bytes`` of the file system."""

    path: Path
    size_bytes: int


def own_prefix() -> str:
    """Return the prefix of the regions that this process owns, whatever program it becomes.

    It names the process by its number, start time and PID namespace: numbers are reused, and
    containers may share /dev/shm.
    """
    return f"brisk_server_{os.getpid()}_{birth_of(os.getpid())}_{_namespace()}_"


def with_prefix(options: Sequence[str], prefix: str) -> tuple[str, ...]:
    """Return ``tritonserver``'s options with a prefix of its regions, unless they give one."""
    if any(f"{PREFIX_OPTION}=" in word for word in options):
        return tuple(options)
    return (*options, f"--backend-config=python,{PREFIX_OPTION}={prefix}")


def remove_left(shared_memory: Path = SHARED_MEMORY) -> list[StubRegion]:
    """Remove the regions of ended servers that Brisk started. Return the removed regions.

    These are only files of this user whose name says that their owner is a process of this PID
    namespace that has ended, and that no process uses (a stub may outlive its server for a
    moment).
    """
    ended = [
        region
        for region in _regions(shared_memory, os.geteuid())
        if (named := _OWNED.match(region.path.name)) and _has_ended(*map(int, named.groups()))
    ]
    removed = []
    for region in _unused(ended):
        with contextlib.suppress(OSError):  # another start was faster
            region.path.unlink()
            removed.append(region)
    return removed


def left(shared_memory: Path = SHARED_MEMORY) -> list[StubRegion]:
    """Return the regions of any server that no process uses: this user's, or for root those of
    all users."""
    user = os.geteuid()
    return _unused(_regions(shared_memory, user or None))


def _unused(regions: Iterable[StubRegion]) -> list[StubRegion]:
    """Return the regions that no visible process of this machine has in its memory maps or names
    in its command line: a stub's names its region, a server's the prefix of its regions.

    The command line is evidence for processes whose maps are not readable. A region's number is
    random, so only its name is searched for, whatever its path is in the process.
    """
    names = {region: os.fsencode(region.path.name) for region in regions}
    for process in Path("/proc").glob("[0-9]*") if names else ():
        memory, command = _read(process / "maps"), _read(process / "cmdline")
        for region, name in list(names.items()):
            prefix = _OWNED.match(region.path.name)
            in_command = os.fsencode(prefix.group()) if prefix else name
            if name in memory or in_command in command:
                del names[region]
    return list(names)


def _read(file: Path) -> bytes:
    """Return a process file's content; empty if the process has ended or is not readable."""
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _regions(shared_memory: Path, user: int | None) -> Iterator[StubRegion]:
    """Yield all regions with names like Triton's, of one user, or of all users for None."""
    for path in sorted(shared_memory.iterdir()):
        if not _ANY.match(path.name):
            continue
        with contextlib.suppress(OSError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and user in (None, status.st_uid):
                yield StubRegion(path, status.st_blocks * 512)


def _has_ended(process: int, birth: int, namespace: int) -> bool:
    """Whether a process has ended; False if that is unknown, as for a process of another PID
    namespace."""
    return namespace == _namespace() != 0 and has_ended(process, birth)


def _namespace() -> int:
    """Return the number of this process's PID namespace; 0 if the system does not report it."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0
