"""Checks that files which are executed, mapped or indexed come from where no other user can write,
and locks that keep files which are in use from being removed.

Root is trusted: it can write everywhere anyway.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_THE_KERNELS = "/proc", "/sys"
"""File systems where root may write by their modes, and can make nothing."""

HOLD_S = 0.05
"""The longest that an opening waits for the lock of a process that looks whether the file is in
use. A lock that stays longer is that of one which removes it."""

_LOOK_S = 0.001
"""The time between two attempts to get a lock."""


def make_private(directory: Path) -> None:
    """Make a directory, and what is missing above it, with mode 0700; do nothing if it exists.

    Nothing is made where other users could exchange it. Raises PermissionError like
    ``check_directory``, OSError if it cannot be made.
    """
    missing = []
    for each in directory.parents:
        if each.exists():
            check_directory(each)
            break
        missing.append(each)
    for each in (*reversed(missing), directory):
        each.mkdir(mode=0o700, exist_ok=True)
    check_directory(directory)


def check_makable(directory: Path) -> None:
    """Check that ``directory`` exists or can be made, and that files can be put into it; make
    nothing.

    Raises PermissionError like ``check_directory``, else the OSError with which that would fail.
    """
    present = next(each for each in (directory, *directory.parents) if each.exists())
    if not present.is_dir():
        number = errno.EEXIST if present == directory else errno.ENOTDIR
        raise OSError(number, os.strerror(number), str(directory))
    check_directory(present)
    if not os.access(present, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))
    device = os.stat(present).st_dev
    if any(os.path.ismount(each) and os.stat(each).st_dev == device for each in _THE_KERNELS):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))


def check_directory(directory: Path) -> None:
    """Check that no other user can exchange what lies in ``directory``, there or further up.

    In a sticky directory, such as ``/tmp``, others can add files but rename or remove none of
    ours. Raises PermissionError that names the directory, OSError if it does not exist.
    """
    real = Path(os.path.realpath(directory))
    for each in (real, *real.parents):
        status = os.lstat(each)
        if status.st_uid not in (os.geteuid(), 0):
            raise PermissionError(
                f"directory {each} belongs to user {status.st_uid}, who could exchange what lies "
                f"in it; it must be of user {os.geteuid()} or root"
            )
        if status.st_mode & _OTHERS_WRITE and not status.st_mode & stat.S_ISVTX:
            raise PermissionError(
                f"directory {each} has mode {stat.S_IMODE(status.st_mode):04o}: other users could "
                f"exchange what lies in it; chmod go-w {each}"
            )


def open_own(path: Path, *, is_secret: bool = False, is_anywhere: bool = False) -> int:
    """Open a file that no other user can have written, in such a directory; return the descriptor.

    ``is_secret``: no other user may read it either. ``is_anywhere``: whoever put it there is
    trusted. The file that is checked is the one that is opened. Raises PermissionError that names
    it, OSError if it cannot be opened.
    """
    if not is_anywhere:
        check_directory(path.parent)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _check_file(path, os.fstat(descriptor), 0o077 if is_secret else _OTHERS_WRITE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_file(path: Path, status: os.stat_result, forbidden: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise PermissionError(f"{path} is not a file")
    if status.st_uid not in (os.geteuid(), 0):
        raise PermissionError(
            f"{path} belongs to user {status.st_uid}; it must be of user {os.geteuid()} or root"
        )
    if status.st_mode & forbidden:
        what, change = "written", f"chmod go-w {path}, if nobody else has written it"
        if forbidden & 0o044:
            what, change = "read or written", "remove it, and it is made anew"
        raise PermissionError(
            f"{path} has mode {stat.S_IMODE(status.st_mode):04o}: it could be {what} by other "
            f"users; {change}"
        )


def hold(descriptor: int) -> bool:
    """Keep an open file from being removed while the descriptor, or a copy of it, is open: whoever
    removes such files locks them alone first.

    Return False if it is being removed.
    """
    until_s = time.monotonic() + HOLD_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # another process removes it, or has it locked to look
            if os.fstat(descriptor).st_nlink == 0 or time.monotonic() >= until_s:
                return False
            time.sleep(_LOOK_S)
        except OSError:  # a file system without locks: it may be removed, which breaks no mapping
            return True
        else:
            return os.fstat(descriptor).st_nlink > 0
