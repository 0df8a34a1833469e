"""Leases of files (``fcntl(2)``): the kernel lets nobody open one before its holder has agreed.

So a reader of a generated file waits until its holder has looked whether it is still up to date.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


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
