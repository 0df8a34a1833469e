"""How many threads compute a program: all there are, or one where that has proved faster.

A second thread costs two hand-overs a layer. Programs of small layers lose more by that than
they gain (a network of 50 µs took 100 µs with two threads), and which ones do depends on machine
and shapes, so it is measured: the first runs of each set of input shapes try both.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

TRIALS = 4
"""Runs with each number of threads; the first of each, which warms caches, does not count."""

LONGEST_TRIED_NS = 30_000_000
"""A run that takes longer with all threads is not tried with one: it has work for them."""

MOST_SIGNATURES = 64
"""Sets of input shapes remembered; further ones are run with all threads."""


@dataclass(slots=True)
class _Trial:
    runs: dict[int, int] = field(default_factory=dict)
    best_ns: dict[int, int] = field(default_factory=dict)
    decided: int | None = None


class ThreadChoice:
    """The choice for one loaded program. Not thread-safe."""

    def __init__(self, available: int) -> None:
        self.available = available
        self._trials: dict[Hashable, _Trial] = {}

    def choose(self, signature: Hashable) -> int:
        """Threads for the next run of these input shapes."""
        if self.available == 1:
            return 1
        trial = self._trials.get(signature)
        if trial is None:
            if len(self._trials) >= MOST_SIGNATURES:
                return self.available
            trial = self._trials[signature] = _Trial()
        if trial.decided is not None:
            return trial.decided
        if trial.runs.get(self.available, 0) <= trial.runs.get(1, 0):
            return self.available
        return 1

    def learn(self, signature: Hashable, threads: int, duration_ns: int) -> None:
        """What a whole, uninterrupted run took with the threads chosen for it."""
        trial = self._trials.get(signature)
        if trial is None or trial.decided is not None:
            return
        runs = trial.runs[threads] = trial.runs.get(threads, 0) + 1
        if runs > 1:
            best_ns = trial.best_ns.get(threads)
            trial.best_ns[threads] = duration_ns if best_ns is None else min(best_ns, duration_ns)
            if threads == self.available and duration_ns > LONGEST_TRIED_NS:
                trial.decided = self.available
        if min(trial.runs.get(1, 0), trial.runs.get(self.available, 0)) >= TRIALS:
            trial.decided = min(trial.best_ns, key=lambda count: trial.best_ns[count])
