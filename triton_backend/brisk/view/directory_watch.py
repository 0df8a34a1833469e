"""inotify: which entry of a repository has changed, within a millisecond of the change."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from pathlib import Path

_CLOSE_WRITE, _MOVED, _CREATE, _DELETE, _ATTRIB = 0x8, 0xC0, 0x100, 0x200, 0x4
_OVERFLOW, _IGNORED, _ONLY_DIRECTORIES = 0x4000, 0x8000, 0x01000000
_MASK = _CLOSE_WRITE | _MOVED | _CREATE | _DELETE | _ATTRIB | _ONLY_DIRECTORIES
_EVENT = struct.Struct("iIII")
_READ_BYTES = 1 << 16


class DirectoryWatch:
    """Of repositories, their entries and these entries' version directories."""

    def __init__(self, repositories: Sequence[Path]) -> None:
        """Raises OSError where the kernel has no inotify, or no more of it."""
        self._library = ctypes.CDLL(None, use_errno=True)
        self.descriptor = self._library.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify")
        self._entries: dict[int, Path | None] = {}
        self._repositories: dict[int, Path] = {}
        self.is_whole = True
        """Whether all changes are told. Else, as on a network's file system, one has to look."""
        for repository in repositories:
            number = self._add(repository)
            if number is None:
                continue
            self._repositories[number] = repository
            for name in os.listdir(repository):
                self.add_entry(repository / name)

    def add_entry(self, entry: Path) -> None:
        """Watch what is there of the entry; what is watched already stays so."""
        if self._add_part(entry, entry):
            try:
                versions = [path for path in entry.iterdir() if path.name.isdecimal()]
            except OSError:
                return
            for version in versions:
                self._add_part(version, entry)

    def changed(self) -> set[Path] | None:
        """The entries that have changed since the last call; None where that may be any."""
        entries: set[Path] = set()
        try:
            data = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return entries
        position, is_any = 0, False
        while position < len(data):
            number, mask, _, length = _EVENT.unpack_from(data, position)
            position += _EVENT.size
            name = data[position : position + length].rstrip(b"\0")
            position += length
            if mask & _OVERFLOW:
                is_any = True
            elif mask & _IGNORED:
                self._entries.pop(number, None)
            elif number in self._repositories:
                if name:
                    entries.add(self._repositories[number] / os.fsdecode(name))
            elif (entry := self._entries.get(number)) is not None:
                entries.add(entry)
            else:
                is_any = is_any or number in self._entries
        return None if is_any else entries

    def _add_part(self, place: Path, entry: Path) -> bool:
        number = self._add(place)
        if number is None or number in self._repositories:
            return False
        # One directory may be of several entries, by links: any of them may have changed then.
        known = self._entries.setdefault(number, entry)
        if known != entry:
            self._entries[number] = None
        return True

    def _add(self, directory: Path) -> int | None:
        number = self._library.inotify_add_watch(
            self.descriptor, os.fsencode(directory), ctypes.c_uint32(_MASK)
        )
        if number < 0:
            self.is_whole = self.is_whole and ctypes.get_errno() in (2, 20)  # gone, or a file
            return None
        return int(number)
