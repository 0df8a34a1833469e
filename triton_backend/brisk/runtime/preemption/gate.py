"""The gate between the workers: a page of shared memory and an alarm, made before they are forked.

The foreground worker writes what real-time work it has. The background worker reads that before
each of its segments; while there is none, that is one load from memory. A segment that is held
sleeps until the alarm rings. It checks again every ``RECHECK_S`` in any case, so that it does not
hang if the foreground worker has died; the supervisor then opens the gate. No process ever waits
for the background worker.

Every field is one aligned 8-byte word with one writer, so a reader sees the old or the new value
and nothing in between. Fields may be of different moments: one segment may be judged wrongly.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import signal

from brisk.protocol.gate_page import GatePage, wake_waiting
from brisk.scheduling.policies import Realtime

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | 0x0010  # F_SEAL_FUTURE_WRITE

RECHECK_S = 0.01
"""The time that a held segment sleeps before the policy is asked again."""


class Gate:
    """The page and its alarm, made by the supervisor and inherited by its workers."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("brisk-gate", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        """The page's descriptor: others may map it to read, but can no longer map it to write."""
        os.ftruncate(self.descriptor, mmap.PAGESIZE)
        self.page = GatePage.from_buffer(mmap.mmap(self.descriptor, mmap.PAGESIZE))
        with contextlib.suppress(OSError):  # kernels before 5.1 have no such seal
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
        self.alarm = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """An eventfd that is written to when the gate opens while a segment is held."""

    @property
    def is_open(self) -> bool:
        return not self.page.count

    # --- the foreground worker, and the supervisor after that has died ----------------------

    def close(self, count: int, deadline_ns: int | None) -> None:
        """Note ``count`` real-time jobs, at least 1; the first one is due at ``deadline_ns``. Wake
        the threads of stubs whose runs give way to them."""
        was_open = self.is_open
        self.page.deadline_ns = deadline_ns or 0
        self.page.count = count
        if was_open:
            wake_waiting(self.page)

    def expect_end(self, end_ns: int | None) -> None:
        """Note when the real-time run that begins now is expected to end; None: unknown."""
        self.page.end_ns = end_ns or 0

    def open(self) -> None:
        """Note that there is no real-time work any more, and wake a held segment."""
        self.page.count = 0
        self.page.end_ns = 0
        if self.page.is_held:
            os.eventfd_write(self.alarm, 1)

    def resume_worker(self) -> None:
        """Continue the background worker, which the dead foreground worker may have stopped."""
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

    def hold_segments(self, *, others_run: bool = False) -> None:
        """Hold segments until the alarm rings; for ``RECHECK_S`` if it rang just before this.

        ``others_run``: whether segments that began before this go on."""
        self.page.segment_runs = int(others_run)
        self.page.is_held = 1

    def pause_segments(self, *, others_run: bool = False) -> None:
        self.page.segment_runs = int(others_run)
        self.page.is_held = 0

    def leave(self) -> None:
        """Clear the background worker's words after its death, before its number is reused.

        Called by the supervisor.
        """
        self.page.process = 0
        self.pause_segments()
