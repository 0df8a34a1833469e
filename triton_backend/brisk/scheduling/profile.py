"""What runs and their layers take: running averages, for a model and the shapes of its inputs.

The time of a layer depends on its shapes and not on its values (REEF, 2.1), so the past
predicts it. Times are wall-clock, measured by the worker as it runs. Not thread-safe.
"""

from __future__ import annotations

import math
import statistics
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from brisk.scheduling.policies import PaddingTrial

WEIGHT = 0.2
"""Of the newest measurement in a layer's average."""

RECENT_RUNS = 15
"""Whole runs that are remembered."""

FIRST_PAIRS = 9
"""Comparisons of a run alone with one beside best-effort work before a slowdown is told."""

RECENT_PAIRS = 25
"""Comparisons that are remembered."""

_ERROR = 0.93
"""The standard error of a normal sample's median is so many times its interquartile range, over
the root of its size."""

RUNS_ALONE = 3
"""Before each run beside best-effort work while the first comparisons are made: a single one
between runs alone is compared with both its neighbours."""

CLEAR_PAIRS, CLEAR_SLOWDOWN = 3, 1.25
"""Comparisons that are enough where each tells of such a slowdown."""

TRIAL_INTERVAL, LONGEST_INTERVAL = 16, 512
"""Runs from one trial of the other kind to the next, so that a verdict never gets old. A trial
alone harms nobody; those beside best-effort work that slows the run down come after pauses that
double, or they would be what one feels in a hundred runs."""

MOST_PROFILES = 512
"""Models and shapes remembered; the one not used for longest goes first."""


class _Whole(NamedTuple):
    taken_ns: int
    beside: bool
    threads: int


class RunProfile:
    """Of one model and one set of input shapes."""

    def __init__(self) -> None:
        self.run_ns: float | None = None
        """What a run takes at present; None until one has ended."""
        self._recent_ns: deque[int] = deque(maxlen=RECENT_RUNS)
        self._ratios: deque[float] = deque(maxlen=RECENT_PAIRS)
        self._last: _Whole | None = None
        self._block = 0
        """How many runs in a row were of the last one's kind."""
        self._layers: list[float] = []
        self.slowdown: float | None = None
        """Time beside best-effort work over time alone; None until it was compared."""
        self._is_harmed: bool | None = None
        """The verdict at the last look; None: there was none."""
        self._pause = self._left = TRIAL_INTERVAL

    def next_trial(self, limit: float) -> PaddingTrial:
        """Which of the two the next run should measure, where there is best-effort work.

        ``limit``: slowdown up to which runs are beside it anyway.
        """
        slowdown = self.slowdown
        if slowdown is None:
            was_alone = self._last is not None and not self._last.beside
            is_due = was_alone and self._block >= RUNS_ALONE
            return PaddingTrial.BESIDE if is_due else PaddingTrial.ALONE
        is_harmed = slowdown > limit
        if is_harmed is not self._is_harmed:
            self._is_harmed, self._pause, self._left = is_harmed, TRIAL_INTERVAL, TRIAL_INTERVAL
        self._left -= 1
        if self._left > 0:
            return PaddingTrial.NONE
        if is_harmed:
            self._pause = min(2 * self._pause, LONGEST_INTERVAL)
        self._left = self._pause
        return PaddingTrial.BESIDE if is_harmed else PaddingTrial.ALONE

    def learn_run(self, taken_ns: int, beside: bool, threads: int = 1) -> None:
        """What a whole run took, with or without best-effort work beside it.

        It is compared with the one just before it, if that was of the other kind: a machine that
        others use may be half as fast a second later.
        """
        last, whole = self._last, _Whole(taken_ns, beside, threads)
        self._last = whole
        self._recent_ns.append(taken_ns)
        self.run_ns = statistics.median(self._recent_ns)
        if last is None or last.beside is not beside:
            self._block = 0
            if last is not None and last.threads == threads:
                one, other = (whole, last) if beside else (last, whole)
                self._ratios.append(one.taken_ns / max(1, other.taken_ns))
                self.slowdown = self._compared()
        self._block += 1

    def learn_layers(self, layers_ns: Sequence[int]) -> None:
        if len(self._layers) != len(layers_ns):
            self._layers = [float(taken_ns) for taken_ns in layers_ns]
            return
        self._layers = [
            known_ns + WEIGHT * (taken_ns - known_ns)
            for known_ns, taken_ns in zip(self._layers, layers_ns, strict=True)
        ]

    def layer_ns(self, position: int) -> int | None:
        """What the layer at ``position`` takes; None where no run has ended yet."""
        return int(self._layers[position]) if position < len(self._layers) else None

    def _compared(self) -> float | None:
        """The median of the comparisons and its standard error: single ones differ by a fifth,
        and what decides on a bound should rather be too large than too small.
        """
        known = len(self._ratios)
        is_clear = known >= CLEAR_PAIRS and min(self._ratios) >= CLEAR_SLOWDOWN
        if known < FIRST_PAIRS and not is_clear:
            return None
        first, median, third = statistics.quantiles(self._ratios, n=4, method="inclusive")
        return median + _ERROR * (third - first) / math.sqrt(known)


class ProfileTable:
    def __init__(self) -> None:
        self._profiles: OrderedDict[Hashable, RunProfile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._profiles)

    def find(self, key: Hashable) -> RunProfile:
        """The profile of ``key``, made where there is none."""
        profile = self._profiles.get(key)
        if profile is None:
            profile = self._profiles[key] = RunProfile()
            if len(self._profiles) > MOST_PROFILES:
                self._profiles.popitem(last=False)
        self._profiles.move_to_end(key)
        return profile

    def run_ns(self, key: Hashable) -> float | None:
        """What a run of ``key`` takes; None where that is not known."""
        profile = self._profiles.get(key)
        return None if profile is None else profile.run_ns
