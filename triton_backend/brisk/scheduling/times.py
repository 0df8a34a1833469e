"""Measured times: durations of runs, and the share of the time that some work has had.

The duration of a run depends on its shapes and not on its values (REEF, 2.1), so past runs predict
it: by a running median for each model and set of input shapes. Times are wall-clock, measured by
the worker as it runs. Not thread-safe.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Hashable
from enum import Enum

RECENT_RUNS = 15
"""The number of runs that are remembered."""

MOST_PROFILES = 512
"""The number of models and shapes remembered; the least recently used is dropped first."""

HOPE = 0.99
"""The factor of a run's expected time each time that it is too long for a request.

What was measured concurrently with other work may be true no more, and a request that is refused
measures nothing. So one is let in in time: if the time is 5 % too long for its time-out the 6th,
twice as long the 70th, ten times the 231st, or a later one if others are in its way. A mistake
costs one request.
"""


class RunProfile:
    """The durations of runs of one model with one set of input shapes."""

    def __init__(self) -> None:
        self.run_ns: float | None = None
        """The typical time of a run at present; None until one has ended."""
        self._recent_ns: deque[int] = deque(maxlen=RECENT_RUNS)
        self._passed_by = 0
        """The number of requests that it was too long for, since one of them was let in."""
        self._is_tried = False
        """Whether a run was let in that is expected to take too long."""

    @property
    def least_ns(self) -> float:
        """The shortest of the recent durations: that of a run while nothing else wants the
        processors. Infinite until a run has ended."""
        return min(self._recent_ns, default=math.inf)

    def learn(self, taken_ns: int) -> None:
        """Note the duration of a whole run. If it was let in by hope, and rightly, the longer ones
        before it say nothing more."""
        if self._is_tried and self.run_ns is not None and taken_ns < self.run_ns:
            self._recent_ns.clear()
        self._is_tried = False
        self._recent_ns.append(taken_ns)
        ordered = sorted(self._recent_ns)  # statistics.median imports fractions and decimals
        middle = len(ordered) // 2
        self.run_ns = (ordered[middle] + ordered[-1 - middle]) / 2

    def hoped_ns(self, most_ns: int) -> float | None:
        """Return the typical time of a run, for a request that is refused if it is longer than
        ``most_ns``; now and then less (``HOPE``). None until a run has ended."""
        if self.run_ns is None or self.run_ns <= most_ns:
            return self.run_ns
        hoped_ns = self.run_ns * HOPE**self._passed_by
        self._passed_by += 1
        return hoped_ns if hoped_ns <= most_ns else self.run_ns

    def let_in(self, most_ns: int) -> None:
        """Note that a request with ``most_ns`` of time is let in."""
        if self.run_ns is not None and self.run_ns > most_ns:
            self._passed_by, self._is_tried = 0, True


class ProfileTable:
    def __init__(self) -> None:
        self._profiles: OrderedDict[Hashable, RunProfile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._profiles)

    def find(self, key: Hashable) -> RunProfile:
        """Return the profile of ``key``; make one if there is none."""
        profile = self._profiles.get(key)
        if profile is None:
            profile = self._profiles[key] = RunProfile()
            if len(self._profiles) > MOST_PROFILES:
                self._profiles.popitem(last=False)
        self._profiles.move_to_end(key)
        return profile

    def run_ns(self, key: Hashable) -> float | None:
        """Return how long a run of ``key`` takes; None if that is unknown."""
        profile = self._profiles.get(key)
        return None if profile is None else profile.run_ns


# What share of the time some work ran, and whether it is owed more.

HALF_LIFE_NS = 500_000_000
"""The age at which an interval's weight is one half."""


class ShareMeter:
    """The time in which work ran, as a share of the time in which it ran or was held.

    It is notified of every change; times without work do not count. Not thread-safe.
    """

    def __init__(self) -> None:
        self._ran_ns = 0.0
        self._held_ns = 0.0
        self._is_held = False
        self._since_ns: int | None = None

    def change(self, now_ns: int, *, is_held: bool) -> None:
        """Note that work is held from now on, or runs."""
        self._advance(now_ns)
        self._is_held = is_held

    def rest(self) -> None:
        """Note that there is no work until the next ``change``."""
        self._since_ns = None

    def share(self, now_ns: int) -> float:
        """Return the fraction of the time in which work ran; 1 before anything was held."""
        self._advance(now_ns)
        total_ns = self._ran_ns + self._held_ns
        return self._ran_ns / total_ns if total_ns else 1.0

    def _advance(self, now_ns: int) -> None:
        if self._since_ns is not None:
            passed_ns = now_ns - self._since_ns
            fading = 0.5 ** (passed_ns / HALF_LIFE_NS)
            self._ran_ns *= fading
            self._held_ns *= fading
            if self._is_held:
                self._held_ns += passed_ns
            else:
                self._ran_ns += passed_ns
        self._since_ns = now_ns


PATIENCE_NS = 2_000_000_000
"""The time after which work that has not run at all is owed its share. Real-time requests that
come at random have busy times that long only if they fill the worker. In a simulation of runs of
20 ms next to normal work without end, a share of 0.05 lengthens their waits for each other by
nothing at a load of 0.7 (mean 1.001, p99 1.001), and at 0.8 by 2 % (p99 11 %); with a patience of
1 s by 1 and 7 % (p99 3 and 24 %)."""

MOST_SAVED = 2.0
"""The limit, in shares of PATIENCE_NS, of what work can be behind when it is held anew: work that
was offered turns and had nothing to do in them cannot take them all at once later."""


class Demand(Enum):
    """The current state of the work."""

    NONE = "there is none"
    HELD = "held"
    FREE = "runs, and nothing else waits"
    CONTESTED = "runs, and other work waits"


class MinimumShare:
    """Reports whether work that yields to other work has had less than ``share`` of the time.

    It is notified of every change of what computes while there is such work. The work's debt grows
    by ``share`` of the time in which it is held, and falls by 1 - ``share`` of the time in which
    it runs. The work is owed a turn while the debt is at least ``share`` of PATIENCE_NS. Work held
    without end therefore gets exactly its share from then on. Work that has its share anyway, as
    when the other work does not fill the device, is never owed anything.

    Not thread-safe. In times without such work the debt halves every PATIENCE_NS.
    """

    def __init__(self, share: float) -> None:
        """``share``: from 0 to 1; with 0 nothing is ever owed."""
        self.share = share
        self._behind_ns = 0.0
        self._state = Demand.NONE
        self._since_ns = 0

    def change(self, state: Demand, now_ns: int) -> None:
        """Note the state from now on."""
        passed_ns = now_ns - self._since_ns
        if self._state is Demand.HELD:
            self._behind_ns += self.share * passed_ns
        elif self._state is Demand.NONE:
            if self._behind_ns:  # it is mostly 0, and this runs once a segment
                self._behind_ns *= 0.5 ** (passed_ns / PATIENCE_NS)
        else:
            left_ns = self._behind_ns - (1.0 - self.share) * passed_ns
            if self._state is Demand.FREE:  # time that no other work wants is no debt
                left_ns = min(self._behind_ns, max(0.0, left_ns))
            self._behind_ns = left_ns
        if state is Demand.HELD and self._state is not Demand.HELD:
            self._behind_ns = min(self._behind_ns, MOST_SAVED * self.share * PATIENCE_NS)
        self._state, self._since_ns = state, now_ns

    def is_owed(self, now_ns: int) -> bool:
        """Return whether the work, if any, should run before work that otherwise goes first."""
        if not self.share:
            return False
        self.change(self._state, now_ns)
        return self._behind_ns >= self.share * PATIENCE_NS
