"""What runs and their layers take: running averages, for a model and the shapes of its inputs.

The time of a layer depends on its shapes and not on its values (REEF, 2.1), so the past
predicts it. Times are wall-clock, measured by the worker as it runs. Not thread-safe.
"""

from __future__ import annotations

import statistics
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence

from brisk.scheduling.policies.base import Trial

WEIGHT = 0.2
"""Of the newest measurement in a layer's average."""

RECENT_RUNS = 15
"""Whole runs of each kind that are remembered."""

FIRST_TRIALS = 3
"""Runs alone, and then beside best-effort work, before a run's slowdown is told."""

TRIAL_INTERVAL = 32
"""Runs from one trial of the other kind to the next, so that a verdict never gets old."""

MOST_PROFILES = 512
"""Models and shapes remembered; the one not used for longest goes first."""


class Recent:
    """The newest measurements, and their median: one disturbed run changes nothing."""

    __slots__ = ("_values", "count")

    def __init__(self) -> None:
        self.count = 0
        self._values: deque[int] = deque(maxlen=RECENT_RUNS)

    def add(self, measured_ns: int) -> None:
        self.count += 1
        self._values.append(measured_ns)

    @property
    def median_ns(self) -> float | None:
        """None until something was measured."""
        return statistics.median(self._values) if self._values else None


class RunProfile:
    """Of one model and one set of input shapes.

    ``alone`` and ``beside``: whole runs without and with best-effort work beside them.
    """

    __slots__ = ("_layers", "_runs", "alone", "beside")

    def __init__(self) -> None:
        self.alone = Recent()
        self.beside = Recent()
        self._layers: list[float] = []
        self._runs = 0

    def next_trial(self, limit: float) -> Trial:
        """Which of the two the next run should measure, where there is best-effort work.

        ``limit``: slowdown up to which runs are beside it anyway.
        """
        self._runs += 1
        if self.alone.count < FIRST_TRIALS:
            return Trial.ALONE
        if self.beside.count < FIRST_TRIALS:
            return Trial.BESIDE
        if self._runs % TRIAL_INTERVAL:
            return Trial.NONE
        slowdown = self.slowdown
        return Trial.ALONE if slowdown is not None and slowdown <= limit else Trial.BESIDE

    def learn_run(self, taken_ns: int, beside: bool) -> None:
        (self.beside if beside else self.alone).add(taken_ns)

    def learn_layers(self, layers_ns: Sequence[int]) -> None:
        """What each layer of a whole run took."""
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

    @property
    def run_ns(self) -> float | None:
        """What a run takes, alone where that is known."""
        alone_ns = self.alone.median_ns
        return self.beside.median_ns if alone_ns is None else alone_ns

    @property
    def slowdown(self) -> float | None:
        """Time beside best-effort work over time alone; None until both are known."""
        alone_ns, beside_ns = self.alone.median_ns, self.beside.median_ns
        if self.beside.count < FIRST_TRIALS or not alone_ns or beside_ns is None:
            return None
        return beside_ns / alone_ns


class ProfileTable:
    """Profiles by model and shapes."""

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
