"""What the kernel tells of files: who reads one of ours, and what changes of the user's."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

_CONSTANT_TIME_NS = 10**18

# Of inotify(7).
_CLOSE_WRITE, _MOVED, _CREATE, _DELETE, _ATTRIB = 0x8, 0xC0, 0x100, 0x200, 0x4
_ONLY_DIRECTORIES = 0x01000000
_MASK = _CLOSE_WRITE | _MOVED | _CREATE | _DELETE | _ATTRIB | _ONLY_DIRECTORIES
_EVENT = struct.Struct("iIII")
_READ_BYTES = 1 << 16


class GeneratedConfig:
    """A configuration that this process makes; not yet where readers look for it.

    Where it is leased (fcntl(2)), whoever opens it makes the kernel send SIGIO here, and waits
    until ``release``, at most ``/proc/sys/fs/lease-break-time`` seconds, or until this process
    ends. Its time is constant then, so that Triton takes no exchange for a change.
    """

    def __init__(self, path: Path, text: str, *, lease: bool) -> None:
        """``lease``: unless the file system has none."""
        self._descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        self.is_leased = False
        self.rewrite(text)
        if lease:
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
                os.utime(path, ns=(_CONSTANT_TIME_NS, _CONSTANT_TIME_NS))
                self.is_leased = True
        if not self.is_leased:
            os.close(self._descriptor)

    def rewrite(self, text: str) -> None:
        """Unseen by readers: they wait, or have not come yet."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode("utf-8", "surrogateescape"), 0)
        self.text = text

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for the release, or the kernel has ended the lease."""
        return self.is_leased and fcntl.fcntl(self._descriptor, fcntl.F_GETLEASE) != fcntl.F_WRLCK

    def release(self) -> None:
        """Let readers have it as it is, now and later."""
        if self.is_leased:
            self.is_leased = False
            os.close(self._descriptor)  # which ends the lease


class DirectoryWatch:
    """What has changed in directories, within a millisecond of the change: inotify.

    Where the kernel has no more of it, or none, it tells of nothing.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self.descriptor = self._library.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        self._directories: dict[int, set[Path]] = {}

    def add(self, directory: Path) -> None:
        """One that is watched already stays so."""
        number = self._library.inotify_add_watch(
            self.descriptor, os.fsencode(directory), ctypes.c_uint32(_MASK)
        )
        if number >= 0:  # links may lead to one directory from several
            self._directories.setdefault(number, set()).add(directory)

    def changed(self) -> Iterator[Path]:
        """What has changed in the directories since the last call."""
        try:
            data = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        position = 0
        while position < len(data):
            number, _, _, length = _EVENT.unpack_from(data, position)
            position += _EVENT.size
            name = os.fsdecode(data[position : position + length].rstrip(b"\0"))
            position += length
            for directory in self._directories.get(number, ()):
                yield directory / name
