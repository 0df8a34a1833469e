"""The place of a device's runtime: a private directory with two sockets and a lock.

The supervisor holds the lock for as long as it lives. So a held lock means that a runtime runs,
there are never two supervisors, and files next to a free lock are leftovers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import stat
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from brisk.errors import InvalidConfigurationError
from brisk.ownership import check_directory, check_makable, open_own
from brisk.scheduling.job_class import JobClass
from brisk.settings import runtime_directory

MAX_SOCKET_PATH_BYTES = 107
_MAKING_ATTEMPTS = 100
"""The most attempts to make the directories: a runtime that ends may remove them between their
making and use."""

MOST_WORDS = 2000

_DEVICE = re.compile(r"cpu|cuda:\d+")


class Role(str, Enum):
    """The role of a worker, by the requests that it serves; the value is its socket's name.

    The runtime decides how many processes serve the two sockets: on a GPU one worker listens on
    both.
    """

    FOREGROUND = "foreground"
    BACKGROUND = "background"


WORKER_NAMES = {Role.FOREGROUND: "brisk-fore", Role.BACKGROUND: "brisk-back"}
"""The names of the workers' processes, in ``top`` for instance; at most 15 characters each."""

ROLE_OF_CLASS = {
    JobClass.REALTIME.value: Role.FOREGROUND,
    JobClass.NORMAL.value: Role.FOREGROUND,
    JobClass.BESTEFFORT.value: Role.BACKGROUND,
}
"""The role of the worker that serves the requests of a class."""


def new_socket() -> socket.socket:
    """Return a new socket of the kind that Brisk's processes use: Unix, SEQPACKET."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def _make_own(directory: Path) -> int:
    """Create a directory with mode 0700, or check that an existing one is this user's. Return its
    mode. Raises InvalidConfigurationError, OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _own_mode(directory)


def _own_mode(directory: Path) -> int:
    """Return the mode of this user's directory. Raises InvalidConfigurationError if it is another
    user's or no directory, OSError if there is none."""
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise InvalidConfigurationError(
            f"runtime directory {directory} must be a directory of user {os.geteuid()}; "
            "set BRISK_RUNTIME_DIR to one that is"
        )
    return status.st_mode


class RuntimePaths(NamedTuple):
    """The paths of one device's runtime, and operations on them."""

    base: Path
    device: str

    @property
    def directory(self) -> Path:
        return self.base / self.device.replace(":", "-")

    def socket_path(self, role: Role) -> Path:
        """Return the path of the socket that takes requests of ``role``."""
        return self.directory / f"{role.value}.sock"

    @property
    def lock_path(self) -> Path:
        return self.directory / "lock"

    @property
    def _words_path(self) -> Path:
        return self.base / f"{self.directory.name}.failed"

    def leave_words(self, problem: str) -> None:
        """Write why this runtime cannot start to a file, for the process that started it.

        Raises OSError.
        """
        self._words_path.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        words = f"{os.getpid()} {problem}".encode(errors="backslashreplace")  # paths are any bytes
        with open(os.open(self._words_path, flags, 0o600), "wb") as file:
            file.write(words)

    def take_words(self, process: int) -> str:
        """Return, and remove, the reason why runtime ``process`` could not start; empty if it left
        none."""
        with contextlib.suppress(OSError, ValueError):
            with open(open_own(self._words_path), encoding="utf-8") as file:
                number, _, problem = file.read(MOST_WORDS).partition(" ")
            if number == str(process):
                self._words_path.unlink()
                return problem
        return ""

    def prepare(self) -> None:
        """Create the directories, and make the runtime's private. Raises
        InvalidConfigurationError if this is impossible.

        The base may be a directory for general use, whose mode is not changed: if other users
        could rename files in it, it is refused.
        """
        for attempt in range(_MAKING_ATTEMPTS):
            try:
                _make_own(self.base)
                check_directory(self.base)
                if _make_own(self.directory) & 0o077:
                    os.chmod(self.directory, 0o700)
                return
            except OSError as error:
                is_race = isinstance(error, (FileNotFoundError, FileExistsError))
                if not is_race or attempt == _MAKING_ATTEMPTS - 1:
                    raise self._unusable(error) from error

    def check(self) -> None:
        """Raise the InvalidConfigurationError with which ``prepare`` would fail; make nothing."""
        try:
            if self.base.is_dir():
                _own_mode(self.base)
            check_makable(self.base)
            if self.directory.is_dir():
                _own_mode(self.directory)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> InvalidConfigurationError:
        return InvalidConfigurationError(
            f"runtime directory {self.directory} cannot be used ({error}); "
            "set BRISK_RUNTIME_DIR to a writable one of the user's own"
        )

    def connect(self, timeout_s: float, role: Role = Role.FOREGROUND) -> socket.socket:
        """Return a connection to a worker, or to its listening queue while it starts. Raises
        OSError if there is none."""
        connection = new_socket()
        try:
            connection.settimeout(timeout_s)
            connection.connect(str(self.socket_path(role)))
        except BaseException:
            connection.close()
            raise
        return connection

    def try_lock(self) -> int | None:
        """Take the lock and return its descriptor; None if another process holds it."""
        while True:
            try:
                descriptor = os.open(self.lock_path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:  # a runtime that ends has just removed the directory
                self.prepare()
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with contextlib.suppress(FileNotFoundError):
                    # The holder removes the file before it releases it: then this lock is of a
                    # file that no process can open any more.
                    if os.fstat(descriptor).st_ino == os.stat(self.lock_path).st_ino:
                        return descriptor
            except BlockingIOError:
                os.close(descriptor)
                return None
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def remove(self, lock: int) -> None:
        """Remove the place's files, then release ``lock``, which the caller must hold."""
        for path in (*map(self.socket_path, Role), self.lock_path):
            path.unlink(missing_ok=True)
        os.close(lock)
        for directory in (self.directory, self.base):
            with contextlib.suppress(OSError):  # another device's runtime may live there
                directory.rmdir()


def runtime_place(device: str, environment: Mapping[str, str] = os.environ) -> RuntimePaths:
    """Return the place of ``device`` (``cpu``, ``cuda:0``), without creating it.

    Raises InvalidConfigurationError for an invalid device name, or a path too long for a socket.
    """
    if not _DEVICE.fullmatch(device):
        raise InvalidConfigurationError(f"device '{device}' is neither cpu nor cuda:<number>")
    place = RuntimePaths(runtime_directory(environment), device)
    longest = max(map(place.socket_path, Role), key=lambda path: len(os.fsencode(path)))
    if len(os.fsencode(longest)) > MAX_SOCKET_PATH_BYTES:
        raise InvalidConfigurationError(
            f"{longest} is too long for a socket ({MAX_SOCKET_PATH_BYTES} bytes); "
            "set BRISK_RUNTIME_DIR to a shorter path"
        )
    return place
