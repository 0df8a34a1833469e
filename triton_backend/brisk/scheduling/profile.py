"""Running medians of the times of runs, for a model and the shapes of its inputs.

The time of a run depends on its shapes and not on its values (REEF, 2.1), so the past predicts it.
Times are wall-clock, measured by the worker as it runs. Not thread-safe.
"""

from __future__ import annotations

import math
import statistics
from collections import OrderedDict, deque
from collections.abc import Hashable

RECENT_RUNS = 15
"""The number of runs that are remembered."""

MOST_PROFILES = 512
"""The number of models and shapes that are remembered; the one not used for longest goes first."""


class RunProfile:
    """The times of one model's runs with inputs of the same shapes."""

    def __init__(self) -> None:
        self.run_ns: float | None = None
        """The time of a run at present; None until one has ended."""
        self._recent_ns: deque[int] = deque(maxlen=RECENT_RUNS)

    @property
    def least_ns(self) -> float:
        """The least time of the recent runs: what one takes if nothing else wants the processors.
        Infinite until one has ended."""
        return min(self._recent_ns, default=math.inf)

    def learn(self, taken_ns: int) -> None:
        """Take in the time of a whole run."""
        self._recent_ns.append(taken_ns)
        self.run_ns = statistics.median(self._recent_ns)


class ProfileTable:
    def __init__(self) -> None:
        self._profiles: OrderedDict[Hashable, RunProfile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._profiles)

    def find(self, key: Hashable) -> RunProfile:
        """Return the profile of ``key``, making it if there is none."""
        profile = self._profiles.get(key)
        if profile is None:
            profile = self._profiles[key] = RunProfile()
            if len(self._profiles) > MOST_PROFILES:
                self._profiles.popitem(last=False)
        self._profiles.move_to_end(key)
        return profile

    def run_ns(self, key: Hashable) -> float | None:
        """Return the time of a run of ``key``; None: unknown."""
        profile = self._profiles.get(key)
        return None if profile is None else profile.run_ns
