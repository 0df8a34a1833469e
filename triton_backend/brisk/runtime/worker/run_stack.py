"""The worker's own runs: the last one computes, those before it are parked.

Used by the worker's main thread.
"""

from __future__ import annotations

from collections.abc import Callable

from brisk.runtime.preemption.pacing import Pacing
from brisk.runtime.worker.batch import Run


class RunStack:
    """A parked run stays at its layer boundary; when it resumes, nothing is computed again.

    ``runs`` is not to be changed from outside.
    """

    def __init__(self, pacing: Pacing, clock_ns: Callable[[], int]) -> None:
        self.runs: list[Run] = []
        self._pacing = pacing
        self._clock_ns = clock_ns

    @property
    def top(self) -> Run | None:
        """The one that computes."""
        return self.runs[-1] if self.runs else None

    def begin(self, run: Run) -> None:
        """Compute ``run`` now."""
        if self.runs:
            self.runs[-1].park()
            run.count_preemption()
        self.runs.append(run)
        self._pacing.begins(run, self._clock_ns())

    def end(self) -> None:
        """The top one is over: go on with the one before it."""
        self.runs.pop()
        self._pacing.pauses()
        if self.runs:
            self.runs[-1].resume()
            self._pacing.begins(self.runs[-1], self._clock_ns())
