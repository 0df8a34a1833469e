"""The process that keeps a view up while its server lives, and removes it behind the server."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import shutil
import signal
import struct
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from brisk.ownership import make_private
from brisk.view.mirror import Mirror

_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)
"""What a terminal or an init sends to all processes: the keeper ends with the server."""

# Of inotify(7).
_CLOSE_WRITE, _MOVED, _CREATE, _DELETE, _ATTRIB = 0x8, 0xC0, 0x100, 0x200, 0x4
_OVERFLOW, _WATCH_ENDED, _ONLY_DIRECTORIES = 0x4000, 0x8000, 0x01000000
_MASK = _CLOSE_WRITE | _MOVED | _CREATE | _DELETE | _ATTRIB | _ONLY_DIRECTORIES
_EVENT = struct.Struct("iIII")
_READ_BYTES = 1 << 16


class ViewRoot(NamedTuple):
    """``lock``: a descriptor, held by whoever shall keep the view from being removed as left."""

    directory: Path
    lock: int


def make_root(base: Path) -> ViewRoot:
    """A view's directory under ``base``, where those of dead servers are removed first.

    Raises OSError, PermissionError where others could change what lies in ``base``.
    """
    make_private(base)
    with open(base / "lock", "a") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        for left in base.iterdir():
            if left.is_dir() and not left.is_symlink():
                _remove_if_left(left)
        directory = Path(tempfile.mkdtemp(dir=base))
        lock = os.open(directory / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
    return ViewRoot(directory, lock)


def _remove_if_left(directory: Path) -> None:
    try:
        lock = os.open(directory / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)
    except BlockingIOError:
        pass  # its server lives
    finally:
        os.close(lock)


def start_apart(work: Callable[[], None]) -> None:
    """``work`` in a process that is no child of this one, which goes on at once.

    This process becomes a server, which waits for none of our children.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    middle = os.fork()
    if not middle:
        try:
            if not os.fork():
                work()
        except BaseException as error:  # noqa: BLE001  # nobody else would tell of it
            _say(f"{type(error).__name__}: {error}")
        finally:
            os._exit(0)
    os.waitpid(middle, 0)


def keep(mirror: Mirror, root: ViewRoot, server: int, period_s: float | None) -> None:
    """Until the process of the descriptor ``server`` has ended.

    ``period_s``: of looking at all entries, for changes that the kernel does not tell; None where
    the server never looks at its repositories again.
    """
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(PermissionError):
        os.setpgid(0, 0)
    try:
        if period_s is None:
            poll = select.poll()
            poll.register(server, select.POLLIN)
            poll.poll()
        else:
            _Keeper(mirror, server, period_s).run()
    finally:
        shutil.rmtree(root.directory, ignore_errors=True)


class _Keeper:
    def __init__(self, mirror: Mirror, server: int, period_s: float) -> None:
        self._mirror = mirror
        self._server = server
        self._period_s = period_s
        self._told: set[tuple[Path, str]] = set()
        self._lost: set[tuple[Path, str]] = set()
        self._watch: _DirectoryWatch | None = None

    def run(self) -> None:
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGIO, lambda *_: None)  # before the first lease: it would end us
        with contextlib.suppress(OSError):
            self._watch = _DirectoryWatch(self._mirror.repositories)
        self._mirror.expects_entries = True
        if not self._mirror.take_leases():
            self._mirror.refresh()
        poll = select.poll()
        for descriptor in (self._server, reading):
            poll.register(descriptor, select.POLLIN)
        if self._watch is not None:
            poll.register(self._watch.descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(self._period_s * 1000)}
            if self._server in ready:
                return
            if reading in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(reading, 4096)
            try:
                self._mirror.serve_readers()  # always: they wait
                if self._watch is not None and self._watch.descriptor in ready:
                    self._take_changes(self._watch)
                elif not ready:
                    self._mirror.refresh()
                    self._tell()
            except OSError as error:
                _say(f"the view of the model repositories lags behind: {error}")

    def _take_changes(self, watch: _DirectoryWatch) -> None:
        changed = watch.changed()
        if changed is None:
            self._mirror.refresh()
            return
        # New ones first: somebody may ask for them any moment, and those known can be waited for.
        for entry in sorted(changed, key=self._mirror.is_shown):
            watch.add_entry(entry)  # first, so that nothing is missed between
            self._mirror.refresh_entry(entry)

    def _tell(self) -> None:
        """Of an entry that was there at the last look, too: not one that is being written."""
        lost = set(self._mirror.lost().items())
        for entry, why in sorted((lost & self._lost) - self._told):
            _say(
                f"'{entry}' relies on Triton's auto-completion, which is switched off ({why}): "
                "complete its config.pbtxt, or start with --no-complete-entries"
            )
            self._told.add((entry, why))
        self._lost = lost


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        print(f"brisk: {text}", file=sys.stderr, flush=True)


class _DirectoryWatch:
    """Which entry of a repository has changed, within a millisecond of the change: inotify of
    repositories, their entries and these entries' version directories.
    """

    def __init__(self, repositories: Sequence[Path]) -> None:
        """Raises OSError where the kernel has no inotify, or no more of it."""
        self._library = ctypes.CDLL(None, use_errno=True)
        self.descriptor = self._library.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify")
        self._entries: dict[int, Path | None] = {}
        self._repositories: dict[int, Path] = {}
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
            elif mask & _WATCH_ENDED:
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
            return None
        return int(number)
