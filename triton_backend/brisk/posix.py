"""Functions of the C library that Python's own modules lack, and what a process may have."""

from __future__ import annotations

import functools
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


@functools.cache
def libc() -> ctypes.CDLL:
    """Return the process's C library; ``ctypes.get_errno`` returns the error of a failed call."""
    import ctypes  # a stub's start does without

    return ctypes.CDLL(None, use_errno=True)


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends.

    If that has ended already, nothing happens: the caller checks its parent afterwards.
    """
    libc().prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def name_process(name: str) -> None:
    """Set the name that ``top`` shows for the process, at most 15 characters."""
    libc().prctl(_PR_SET_NAME, name.encode())


def raise_file_limit() -> None:
    """Let this process, and those that it starts, open as many files as it may be allowed."""
    import resource  # a stub's start does without

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
