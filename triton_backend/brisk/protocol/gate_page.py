"""The page of shared memory by which the foreground worker says what real-time work it has.

The background worker and stubs that compute read it, at the cost of a load from memory. A thread
of a stub may also sleep until real-time work comes: the page's first word is a futex
(``futex(2)``), which costs the worker one system call when the first real-time request arrives.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import platform

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
"""The system call's number; None: unknown. The C library has no function for it."""

_WAIT, _WAKE, _ALL = 0, 1, 2**31 - 1

_HELD = ctypes.PyDLL(None)
"""The C library, called without giving the interpreter's lock away: for short calls."""


class _Timespec(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]


class GatePage(ctypes.Structure):
    """The words of the page; 0 means unknown.

    Each is aligned, and has one writer: a reader sees the old or the new value. The background
    worker writes those from ``segment_runs`` on.
    ``count``: the real-time requests in flight. ``process``: the background worker's process
    number, 0 if there is none.
    """

    count: int
    end_ns: int
    deadline_ns: int
    segment_runs: int
    is_held: int
    process: int
    _fields_ = [
        (name, ctypes.c_int64)
        for name in ("count", "end_ns", "deadline_ns", "segment_runs", "is_held", "process")
    ]


def wake_waiting(page: GatePage) -> None:
    """Wake all threads that sleep in ``GateView.wait_while_open``, after ``count`` was changed."""
    if _FUTEX is not None:
        _HELD.syscall(_FUTEX, ctypes.byref(page), _WAKE, _ALL, None, None, 0)


class GateView:
    """The page as another process sees it."""

    def __init__(self, descriptor: int) -> None:
        """Map the page to read. Raises OSError. The caller keeps the descriptor."""
        import numpy as np  # gives the address of memory that is only read

        self._page = mmap.mmap(descriptor, mmap.PAGESIZE, prot=mmap.PROT_READ)
        self.words = memoryview(self._page).cast("q")
        """The words of a ``GatePage``: the first one is its ``count``."""
        self._address = np.frombuffer(self._page, np.uint8).ctypes.data
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.can_wait = self._wait(-1, 0.0) == errno.EAGAIN  # no number of requests
        """Whether this system lets threads wait for the word."""

    @property
    def is_open(self) -> bool:
        return not self.words[0]

    def wait_while_open(self, timeout_s: float) -> None:
        """Sleep until there is real-time work, or for ``timeout_s``; less now and then.

        Precondition: ``can_wait``.
        """
        self._wait(0, timeout_s)

    def _wait(self, value: int, timeout_s: float) -> int:
        """Sleep while the word has ``value``; return why not, or not to the end: an error's
        number."""
        if _FUTEX is None:
            return errno.ENOSYS
        seconds = int(timeout_s)
        timeout = _Timespec(seconds, int((timeout_s - seconds) * 1e9))
        arguments = (ctypes.c_void_p(self._address), _WAIT, value, ctypes.byref(timeout), None, 0)
        if self._libc.syscall(_FUTEX, *arguments) == 0:
            return 0
        return ctypes.get_errno()
