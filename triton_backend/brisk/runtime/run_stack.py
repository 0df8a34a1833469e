"""The worker's own runs: the last one computes, those before it are parked.

Used by the worker's main thread.
"""

from __future__ import annotations

from collections.abc import Callable

from brisk.runtime.batch import Run
from brisk.runtime.beside import Beside
from brisk.runtime.pacing import Pacing
from brisk.scheduling.policy import more_urgent


class RunStack:
    """A parked run stays at its layer boundary; when it resumes, nothing is computed again.

    ``runs`` is not to be changed from outside.
    """

    def __init__(self, pacing: Pacing, beside: Beside, clock_ns: Callable[[], int]) -> None:
        self.runs: list[Run] = []
        self._pacing = pacing
        self._beside = beside
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
        self._tell_begun(run)

    def end(self) -> None:
        """The top one is over: go on with the one before it."""
        self.runs.pop()
        self._pacing.pauses()
        if self.runs:
            self.runs[-1].resume()
            self._tell_begun(self.runs[-1])

    def take_back(self, run: Run) -> None:
        """Go on with what the companion has left, unless something as urgent computes."""
        top = self.top
        if top is not None and not more_urgent(run.jobs[0], top.jobs[0]):
            run.park()
            self.runs.insert(-1, run)
            return
        if top is not None:
            top.park()
        self.runs.append(run)
        self._tell_begun(run)

    def begin_beside(self, run: Run) -> None:
        """Let the companion compute ``run`` beside the top one."""
        self._beside.begin(run, self.runs[-1])
        self._pacing.begin_beside([self.runs[-1], run], self._clock_ns())

    def _tell_begun(self, run: Run) -> None:
        """``run`` computes now, perhaps beside the companion's."""
        if self._beside.runs:
            run.is_disturbed = True
            self._pacing.begin_beside([run, *self._beside.runs], self._clock_ns())
        else:
            self._pacing.begins(run, self._clock_ns())
