"""The gate between the workers: a page of shared memory and an alarm, made before they are forked.

The foreground worker writes what real-time work it has, the background worker reads it before
each of its segments: while there is none, that is one load from memory. A segment that is held
sleeps until the alarm rings. It looks again every ``RECHECK_S`` whatever happens, so that nothing
hangs on a foreground worker that has died, and the supervisor opens the gate then. Nobody ever
waits for the background worker.

Every field is one aligned 8-byte word with one writer, so a reader sees old or new, nothing in
between; fields may be of different moments, which costs a wrong guess for one segment.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import signal

from brisk.scheduling.policies import Realtime

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | 0x0010  # F_SEAL_FUTURE_WRITE

RECHECK_S = 0.01
"""How long a held segment sleeps before the policy is asked again."""


class GatePage(ctypes.Structure):
    """The words of the page; 0: not known.

    Those from ``segment_runs`` on are the background worker's: ``process`` is its number, 0 if
    there is none.
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


class Gate:
    """The page and its alarm, made by the supervisor and inherited by its workers."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("brisk-gate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        """The page's descriptor: others may map it to read, but no more to write."""
        os.ftruncate(self.descriptor, mmap.PAGESIZE)
        self.page = GatePage.from_buffer(mmap.mmap(self.descriptor, mmap.PAGESIZE))
        with contextlib.suppress(OSError):  # kernels before 5.1 have no such seal
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
        self.alarm = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Written to when the gate opens while a segment is held."""

    @property
    def is_open(self) -> bool:
        return not self.page.count

    # --- the foreground worker, and the supervisor when it has died -------------------------

    def close(self, count: int, deadline_ns: int | None) -> None:
        """There are ``count`` real-time jobs, at least 1, the first due at ``deadline_ns``."""
        self.page.deadline_ns = deadline_ns or 0
        self.page.count = count

    def expect_end(self, end_ns: int | None) -> None:
        """When the real-time run that begins now is expected to be done; None: not known."""
        self.page.end_ns = end_ns or 0

    def open(self) -> None:
        """There is no real-time work any more."""
        self.page.count = 0
        self.page.end_ns = 0
        if self.page.is_held:
            os.eventfd_write(self.alarm, 1)

    def resume_worker(self) -> None:
        """The foreground worker has died: nothing that it has suspended stays so."""
        if self.page.process:
            os.kill(self.page.process, signal.SIGCONT)

    # --- the background worker ---------------------------------------------------------------

    def enter(self) -> None:
        self.page.process = os.getpid()

    def realtime(self) -> Realtime:
        page = self.page
        return Realtime(
            count=page.count,
            end_ns=page.end_ns or None,
            deadline_ns=page.deadline_ns or None,
        )

    def begin_segment(self) -> None:
        self.page.is_held = 0
        self.page.segment_runs = 1

    def hold_segments(self) -> None:
        """None runs until the alarm rings, or for ``RECHECK_S`` where it rang just before this."""
        self.page.segment_runs = 0
        self.page.is_held = 1

    def pause_segments(self) -> None:
        self.page.segment_runs = 0
        self.page.is_held = 0

    def leave(self) -> None:
        """The worker has died: the supervisor says so, while no other process has its number."""
        self.page.process = 0
        self.pause_segments()
