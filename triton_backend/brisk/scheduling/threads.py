"""How many threads compute a program: all there are, or one where that has proved faster.

A second thread costs two hand-overs a layer. Programs of small layers lose more by that than
they gain (a network of 50 µs took 100 µs with two threads), and which ones do depends on machine,
shapes and what else runs there, so it is measured: the first runs of each set of input shapes try
both, in turns, and so do a few later ones, ever more rarely.
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable
from dataclasses import dataclass, field

TURNS = 2
"""Of each number of threads in a trial."""

RUNS_A_TURN = 4
"""The first of a turn does not count: caches are cold, helper threads asleep."""

FIRST_PAUSE, LONGEST_PAUSE = 64, 16384
"""Runs after a trial until the next; each pause is twice as long as the one before."""

LONGEST_TRIED_NS = 30_000_000
"""A run that takes longer with all threads is not tried with one: it has work for them."""

LEAST_GAIN = 0.05
"""By which share more threads must be faster to be worth what they take from other runs."""

CLEAR_GAIN = 0.25
"""By which share the present number must be faster, its slowest run than the other's fastest, to
end a trial early: then three runs take longer instead of eight."""

MOST_SIGNATURES = 64
"""Sets of input shapes remembered; further ones are run with all threads."""


@dataclass(slots=True)
class _Trials:
    """Of one set of input shapes. ``present``: the threads of the last decision.

    ``runs``: of the trial that is going on; None: ``left`` runs until the next one.
    """

    present: int
    runs: int | None = 0
    left: int = 0
    gain: float | None = None
    """Time with one thread over time with all, by the last trial."""
    pause: int = FIRST_PAUSE
    durations_ns: dict[int, list[int]] = field(default_factory=dict)

    def threads(self, available: int) -> int:
        if self.runs is None:
            return self.present
        is_second_turn = self.runs // RUNS_A_TURN % 2
        return 1 if is_second_turn else available

    @property
    def is_clear(self) -> bool:
        """Whether the present number is so much faster that the trial need not go on."""
        others = [
            one
            for threads, durations_ns in self.durations_ns.items()
            if threads != self.present
            for one in durations_ns
        ]
        own = self.durations_ns.get(self.present, [])
        if len(own) < RUNS_A_TURN - 1 or len(others) < 2:
            return False
        return max(own) < (1.0 - CLEAR_GAIN) * min(others)

    def rest(self) -> None:
        """Run as decided for a while."""
        if len(self.durations_ns) > 1:
            medians = self._medians()
            self.gain = medians[min(medians)] / medians[max(medians)]
        self.runs, self.left = None, self.pause
        self.pause = min(2 * self.pause, LONGEST_PAUSE)
        self.durations_ns = {}

    def decide(self) -> None:
        """By the medians, which tell how it usually goes, for the fewest threads if in doubt: what
        they do not take is left to other runs.
        """
        medians = self._medians()
        enough_ns = min(medians.values()) / (1.0 - LEAST_GAIN)
        self.present = min(count for count, taken_ns in medians.items() if taken_ns <= enough_ns)
        self.rest()

    def _medians(self) -> dict[int, int]:
        return {count: statistics.median_low(all_) for count, all_ in self.durations_ns.items()}


class ThreadChoice:
    """The choice for one loaded program. Not thread-safe."""

    def __init__(self, available: int, *, is_fixed: bool = False) -> None:
        """``is_fixed``: a run always takes all, as ONNX Runtime's sessions do."""
        self.available = available
        self._is_fixed = is_fixed
        self._trials: dict[Hashable, _Trials] = {}

    def choose(self, signature: Hashable) -> int:
        """Threads for the next run of these input shapes."""
        if self.available == 1 or self._is_fixed:
            return self.available
        trials = self._trials.get(signature)
        if trials is None:
            if len(self._trials) >= MOST_SIGNATURES:
                return self.available
            trials = self._trials[signature] = _Trials(self.available)
        return trials.threads(self.available)

    def stretch(self, signature: Hashable) -> float:
        """How many times as long a run takes with half of the threads: 1 where it has one anyway,
        2 where that is not known.

        Between one thread and all, which are measured, by Amdahl's law.
        """
        trials = self._trials.get(signature)
        if trials is None or trials.gain is None:
            return 2.0
        if trials.present == 1:
            return 1.0
        count, gain = self.available, max(1.0, min(trials.gain, self.available))
        serial = (count / gain - 1) / (count - 1)
        return (serial + (1 - serial) * 2 / count) / (serial + (1 - serial) / count)

    def learn(self, signature: Hashable, threads: int, duration_ns: int) -> None:
        """What a whole, uninterrupted run took with the threads chosen for it."""
        trials = self._trials.get(signature)
        if trials is None:
            return
        if trials.runs is None:
            trials.left -= 1
            if trials.left <= 0:
                trials.runs = 0
            return
        if threads != trials.threads(self.available):
            return  # it was chosen before another run of these shapes had ended
        if trials.runs % RUNS_A_TURN:
            if threads == self.available and duration_ns > LONGEST_TRIED_NS:
                trials.present = self.available
                trials.rest()
                return
            trials.durations_ns.setdefault(threads, []).append(duration_ns)
        trials.runs += 1
        if trials.is_clear:
            trials.rest()
        elif trials.runs == 2 * TURNS * RUNS_A_TURN:
            trials.decide()
