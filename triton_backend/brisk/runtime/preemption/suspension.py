"""Stops best-effort work in the middle of a segment (REEF's reset, 4.3, on processors).

At niceness 19 a segment under way when a real-time request arrives still gets time slices on the
request's processors until it ends: two to four in a run of 12 to 20 ms, for 0.3 to 0.5 ms each, a
tenth of the run. A stopped process gets none, and later goes on where it was: nothing is computed
again.

A signal needs no privilege, only a descriptor of the process (``pidfd_open``, Linux 5.3), because
process numbers are given again."""

from __future__ import annotations

import errno
import os
import signal

from brisk import telemetry
from brisk.runtime.log import LOGGER
from brisk.runtime.preemption.gate import Gate
from brisk.telemetry import metrics

_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""The errors of a system that is short of descriptors or memory; the next run tries again."""


class Suspension:
    """Suspends the worker behind ``gate``; used by the foreground worker's main thread."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._is_allowed = True
        self._process = 0
        self._handle: int | None = None
        self.since_ns: int | None = None
        """The time when the worker was stopped; None if it is not stopped."""

    def suspend(self, now_ns: int) -> None:
        """Stop the worker. Does nothing if it is stopped already, has gone, or may not be."""
        if self.since_ns is None and self._send(signal.SIGSTOP):
            self.since_ns = now_ns
            telemetry.count(metrics.FREEZES)

    def resume(self) -> None:
        """Continue the worker. Does nothing if it was not stopped here."""
        if self.since_ns is not None:
            self.since_ns = None
            self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> bool:
        if not self._is_allowed:
            return False
        try:
            if self._gate.page.process != self._process:
                self._open()
            if self._handle is None:
                return False
            signal.pidfd_send_signal(self._handle, number)
        except ProcessLookupError:
            return False
        except (OSError, AttributeError) as error:
            if getattr(error, "errno", None) in _PASSING:
                return False
            self._is_allowed = False
            LOGGER.warning(
                f"best-effort segments cannot be stopped half-way ({error}): those that real-time "
                "requests come upon go on beside these; see 'brisk doctor'"
            )
            return False
        return True

    def _open(self) -> None:
        """Open a descriptor of the present worker process."""
        if self._handle is not None:
            os.close(self._handle)
        self._handle, self._process = None, 0
        if process := self._gate.page.process:
            handle = os.pidfd_open(process)
            # The supervisor removes the number from the gate before the kernel may give it again:
            # a number that is still there was the worker's when the descriptor was opened.
            if self._gate.page.process == process:
                self._handle, self._process = handle, process
            else:
                os.close(handle)
