"""The directories of a view, made from the user's repositories.

Layout of ``<root>``, which is private to the user::

    lock                    held by the server, and so by what it started, as long as it lives
    shown/<repository>/     one for each repository, by its absolute path
    configs/<digest>.pbtxt  the completed configurations

An entry that Brisk completes is a directory there, its ``config.pbtxt`` a link into ``configs``,
all else in it links to the user's files. Everything else is a link to what the user has.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from brisk.protocol.entry_files import CONFIG_FILE, PIPELINE_FILE
from brisk.view.entry_text import EntryText, entry_text, is_unwritten

# Leases of files (``fcntl(2)``): the kernel lets nobody open one before its holder has agreed.
#
# So a reader of a generated file waits until its holder has looked whether it is still up to date.


class LeasedFile:
    """A file that this process made, with a lease on it; not yet where readers look for it.

    Whoever opens it makes the kernel send SIGIO here, and waits until ``release``, at most
    ``/proc/sys/fs/lease-break-time`` seconds, or until this process ends.
    """

    def __init__(self, path: Path, content: bytes) -> None:
        """Raises OSError where the file system, or this machine, has no leases."""
        self._descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            self.rewrite(content)
            fcntl.fcntl(self._descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except BaseException:
            os.close(self._descriptor)
            path.unlink()
            raise

    def rewrite(self, content: bytes) -> None:
        """Unseen by readers: they wait, or have not come yet."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, content, 0)

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for the release, or the kernel has ended the lease."""
        return fcntl.fcntl(self._descriptor, fcntl.F_GETLEASE) != fcntl.F_WRLCK

    def release(self) -> None:
        """Let readers have it as it is, now and later."""
        with contextlib.suppress(OSError):  # the kernel may have ended it
            fcntl.fcntl(self._descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        os.close(self._descriptor)


USER_CONFIG = ".config.pbtxt.as-written"
"""In an entry whose configuration is leased: a link to the user's, whose time Triton sees."""

_CONSTANT_TIME_NS = 10**18
_SETTLED_NS = 100_000_000
"""A file that was changed so recently may be changed again without its time telling so."""

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100

Stamp = tuple[object, ...]

_EXPECTED = EntryText("", None)
"""Of an entry that is just being written: who reads its configuration waits for the next look."""


class Mirror:
    """Not for use by several threads, nor by two processes at once."""

    def __init__(self, root: Path, repositories: Sequence[Path], served: Sequence[str]) -> None:
        """``root`` exists; ``repositories``: absolute; ``served``: backends that are Brisk."""
        self._root = root
        self._served = served
        self.repositories = repositories
        self._configs = root / "configs"
        self._number = 0
        self._stamps: dict[Path, Stamp] = {}
        self._texts: dict[Path, EntryText] = {}
        self._written: dict[Path, str] = {}
        self._leased: dict[Path, LeasedFile] = {}
        self.has_leases = False
        self.expects_entries = False
        """Whether entries may still come: then one of which nothing is known is shown as a
        directory whose configuration is leased."""

    @property
    def shown(self) -> Path:
        return self._root / "shown"

    def place_of(self, user: Path) -> Path:
        """Where the view has what the user has at ``user``."""
        return self.shown / user.relative_to("/")

    def is_shown(self, user: Path) -> bool:
        """Whether the view has something of that name."""
        return os.path.lexists(self.place_of(user))

    def lost(self) -> Mapping[Path, str]:
        """Entries for which Triton's own completion would do more, and what."""
        return {user: text.lost for user, text in self._texts.items() if text.lost is not None}

    def refresh(self) -> None:
        """Bring all up to date."""
        self._configs.mkdir(mode=0o700, exist_ok=True)
        for repository in self.repositories:
            place = self.place_of(repository)
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in _names(repository) | _names(place):
                self.refresh_entry(repository / name)

    def refresh_entry(self, user: Path) -> None:
        """Bring up to date what the view has of ``user``, which lies in a repository."""
        stamp = _stamp(user)
        if stamp is not None and self._stamps.get(user) == stamp:
            return
        place = self.place_of(user)
        if not os.path.lexists(user):
            self._forget(user, place)
            return
        text = self._read(user)
        self._texts[user] = text
        if text.text is None:
            self._unlease(user)
            self._link(place, user)
        else:
            self._show(user, place, text.text)
        self._stamps[user] = stamp or (object(),)

    def serve_readers(self) -> None:
        """Let those read who wait for a leased configuration, after it is up to date."""
        for user in [user for user, file in self._leased.items() if file.is_awaited]:
            try:
                self._stamps.pop(user, None)
                self.refresh_entry(user)
            finally:
                if user in self._leased:
                    self._leased.pop(user).release()
            # The next reader shall wait again: for another file, as this one is being read.
            if user in self._written:
                self._write(user, self._written[user], is_new=True)

    def take_leases(self) -> bool:
        """Lease all configurations from now on; False, and none is, where that is impossible."""
        probe = self._configs / "probe"
        try:
            LeasedFile(probe, b"").release()
            probe.unlink()
        except OSError:
            return False
        self.has_leases = True
        self._stamps.clear()
        self._written.clear()
        self.refresh()
        return True

    def _read(self, user: Path) -> EntryText:
        if not user.is_dir():
            return EntryText(None, None)
        try:
            if self.expects_entries and self._is_new(user) and is_unwritten(user):
                return _EXPECTED
            return entry_text(user, self._served)
        except OSError:  # it goes while it is read; the next look will tell
            return EntryText(None, None)

    def _is_new(self, user: Path) -> bool:
        """Whether nobody has been shown what the entry is."""
        return not os.path.lexists(self.place_of(user)) or self._texts.get(user) == _EXPECTED

    def _show(self, user: Path, place: Path, text: str) -> None:
        self._write(user, text)
        wanted = {
            name: user / name for name in _names(user) if name not in (CONFIG_FILE, USER_CONFIG)
        }
        wanted[CONFIG_FILE] = self._config(user)
        if self.has_leases and (user / CONFIG_FILE).exists():
            wanted[USER_CONFIG] = user / CONFIG_FILE
        if not place.is_dir() or place.is_symlink():
            draft = self._draft(self._root)
            draft.mkdir(mode=0o700)
            for name, target in wanted.items():
                (draft / name).symlink_to(target)
            _put(draft, place)
            return
        for name in _names(place) - wanted.keys():
            _remove(place / name)
        for name, target in wanted.items():
            self._link(place / name, target)

    def _link(self, place: Path, target: Path) -> None:
        if place.is_symlink() and Path(os.readlink(place)) == target:
            return
        draft = self._draft(self._root)
        draft.symlink_to(target)
        _put(draft, place)

    def _config(self, user: Path) -> Path:
        return self._configs / (hashlib.sha256(os.fsencode(user)).hexdigest()[:32] + ".pbtxt")

    def _write(self, user: Path, text: str, *, is_new: bool = False) -> None:
        """A reader finds the old or the new one. Its time tells Triton of a change, unless the
        user's own file does (USER_CONFIG)."""
        held = self._leased.get(user)
        if held is not None and held.is_awaited:
            held.rewrite(_encoded(text))
            self._written[user] = text
            return
        if not is_new and self._written.get(user) == text:
            return
        draft = self._draft(self._configs)
        leased = None
        if self.has_leases:
            with contextlib.suppress(OSError):  # too many files: this one does without
                leased = LeasedFile(draft, _encoded(text))
        if leased is None:
            draft.write_bytes(_encoded(text))
        else:
            os.utime(draft, ns=(_CONSTANT_TIME_NS, _CONSTANT_TIME_NS))
        draft.replace(self._config(user))
        self._written[user] = text
        if held is not None:
            self._leased.pop(user).release()
        if leased is not None:
            self._leased[user] = leased

    def _unlease(self, user: Path) -> None:
        """The entry is read as it is from now on: so by who waits for its configuration, too."""
        held = self._leased.get(user)
        if held is not None and held.is_awaited:
            with contextlib.suppress(OSError):
                held.rewrite((user / CONFIG_FILE).read_bytes())
        self._drop(user)

    def _forget(self, user: Path, place: Path) -> None:
        self._stamps.pop(user, None)
        self._texts.pop(user, None)
        if os.path.lexists(place):
            _remove(place)
        self._drop(user)

    def _drop(self, user: Path) -> None:
        if user in self._leased:
            self._leased.pop(user).release()
        if self._written.pop(user, None) is not None:
            self._config(user).unlink(missing_ok=True)

    def _draft(self, directory: Path) -> Path:
        self._number += 1
        return directory / f".{os.getpid()}-{self._number}"


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _names(directory: Path) -> set[str]:
    try:
        return set(os.listdir(directory))
    except OSError:
        return set()


def _stamp(user: Path) -> Stamp | None:
    """What changes with the entry; None where that cannot be told: it changed just now, or it is
    a pipeline, which may use other entries' files."""
    found: list[object] = []
    newest_ns = 0
    places = [user, user / CONFIG_FILE]
    with contextlib.suppress(OSError):
        for version in sorted(user.iterdir()):
            places.append(version)
            if version.name.isdecimal():
                with contextlib.suppress(OSError):
                    places += sorted(version.iterdir())
    for place in places:
        if place.name == PIPELINE_FILE:
            return None
        try:
            status = place.stat()
        except OSError as error:
            found.append((str(place), error.errno, os.path.lexists(place)))
            continue
        newest_ns = max(newest_ns, status.st_mtime_ns, status.st_ctime_ns)
        found.append(
            (str(place), status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
        )
    return tuple(found) if abs(time.time_ns() - newest_ns) > _SETTLED_NS else None


def _remove(place: Path) -> None:
    """No link is followed: what it leads to is the user's."""
    if stat.S_ISDIR(os.lstat(place).st_mode):
        shutil.rmtree(place)
    else:
        place.unlink()


def _put(draft: Path, place: Path) -> None:
    """``draft`` becomes ``place``; a directory and a link are exchanged with no gap between."""
    try:
        draft.rename(place)
    except OSError:
        if not _exchange(draft, place):
            _remove(place)
            draft.rename(place)
            return
        _remove(draft)


def _exchange(one: Path, other: Path) -> bool:
    library = ctypes.CDLL(None)
    if not hasattr(library, "renameat2"):
        return False
    names = os.fsencode(one), os.fsencode(other)
    return not library.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE)
