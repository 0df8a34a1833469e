"""The guard of runs that a stub computes itself: it ends those that take too long, or that
real-time work comes upon.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from brisk.protocol.gate_page import GateView

if TYPE_CHECKING:
    from brisk.segments.frame import RunControl

TOO_LONG_NS, HANGS_NS, COMPUTES_NS = 50_000_000, 1_000_000_000, 20_000_000
"""A run is ended at the age of TOO_LONG_NS if it has had COMPUTES_NS of a processor while it was
watched, and at HANGS_NS in any case; the last two grow for runs that are known to take long. Then
the worker computes the model for good. A run that gets no processor, as in a container that has
used up its quota, is no fault of the model."""

LOOK_S = 0.05
"""The time between two checks of a run: each takes the interpreter from Triton's thread."""

SUSPECT_NS = 10_000_000
"""The age from which on a checked run is checked again sooner than after LOOK_S."""

_QUIET_LOOKS = 20
"""The number of successive checks without a run after which the guard sleeps until the next
run."""


class Guard:
    """A thread that watches the runs of one other thread; it sleeps while there are none.

    The running thread sets ``begun_ns`` before a run and 0 after it, and calls ``wake`` if
    ``is_awake`` is not set. ``control``: the run control of the running thread.
    """

    def __init__(self, gate: GateView) -> None:
        self.begun_ns = 0
        self.control: RunControl | None = None
        self._gate = gate
        self._clock = time.CLOCK_MONOTONIC  # until the running thread gives its processor time
        self.computes_ns = COMPUTES_NS
        """The processor time for which a run may compute: more than COMPUTES_NS where runs are
        known to take long."""
        self.watches_gate = False
        """Whether some runs give way. Precondition: the gate ``can_wait``."""
        self.gives_way = False
        """Whether the run ends when real-time work comes."""
        self.is_awake = False
        self.has_ended_it = False
        """Whether a run took too long; no further one is watched then."""
        self.has_given_way = False
        """Whether a run was ended for real-time work. The running thread resets it."""
        self._busy = threading.Event()
        self._closing = False
        threading.Thread(target=self._watch, name="brisk-guard", daemon=True).start()

    def watch_own(self, control: RunControl) -> None:
        """Watch the runs of the calling thread."""
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self.control = control

    def wake(self) -> None:
        self.is_awake = True
        self._busy.set()

    def close(self) -> None:
        self._closing = True
        self._busy.set()

    def _watch(self) -> None:
        quiet, pause_s = 0, LOOK_S
        seen_ns = seen_at_ns = 0
        while self._busy.wait() and not self.has_ended_it:
            if self._closing and not self.begun_ns:  # a run under way is watched to its end
                return
            if not self.watches_gate:
                time.sleep(pause_s)
            elif not self._give_way(pause_s):
                quiet = 0
                self._rest()
                continue
            pause_s = LOOK_S
            begun_ns, control = self.begun_ns, self.control
            if begun_ns and control is not None:
                quiet, age_ns = 0, time.monotonic_ns() - begun_ns
                computed_ns = time.clock_gettime_ns(self._clock)
                if begun_ns != seen_ns:
                    seen_ns, seen_at_ns = begun_ns, computed_ns
                left_ns = self.computes_ns - (computed_ns - seen_at_ns)
                hangs_ns = max(HANGS_NS, 50 * self.computes_ns)
                if age_ns >= hangs_ns or (age_ns >= TOO_LONG_NS and left_ns <= 0):
                    # if the run ends just now, the next one fails, and the worker computes it
                    self.has_ended_it = True
                    control.end()
                elif age_ns >= SUSPECT_NS:
                    pause_s = min(LOOK_S, max(TOO_LONG_NS - age_ns, left_ns) / 1e9)
                continue
            quiet += 1
            if quiet == _QUIET_LOOKS:
                quiet = 0
                self._rest()

    def _give_way(self, pause_s: float) -> bool:
        """Sleep for ``pause_s``, but end a run that real-time work comes upon.

        Return whether there is something to watch: False if real-time work came between runs,
        since the next one begins behind it.
        """
        if self._gate.is_open:
            self._gate.wait_while_open(pause_s)
            if self._gate.is_open:
                return True
        if not self.begun_ns:
            return False
        if self.gives_way and self.control is not None and not self.has_given_way:
            self.has_given_way = True
            self.control.end()
        time.sleep(pause_s)
        return True

    def _rest(self) -> None:
        """Sleep until the next run."""
        self._busy.clear()
        self.is_awake = False
        if self.begun_ns or self._closing:
            self.wake()  # it was set before the line above
