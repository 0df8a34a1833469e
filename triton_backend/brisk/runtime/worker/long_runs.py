"""Runs that take long: which are ended, and beside which others go on.

All is called by whoever has the worker's baton (``Relay``).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

from brisk import telemetry
from brisk.errors import UnavailableError
from brisk.os_priority import Precedence, computed_ns
from brisk.runtime.log import LOGGER
from brisk.runtime.preemption.controllers import PreemptionController
from brisk.runtime.requests.batch import Run, RunsInProgress
from brisk.runtime.requests.table import RequestTable
from brisk.runtime.worker.relay import Step
from brisk.scheduling.job import more_urgent
from brisk.telemetry import metrics

STALLED_NS, STALLED_RUNS = 1_000_000_000, 4.0
"""A run's step keeps others of its class waiting too long beyond both: a time, and so many times
what a run of its shapes takes. More urgent ones do not wait that long (``relay.LONG_NS``)."""

MOST_ASIDE = 4
"""Runs that go on beside others at a time; then the first of them has to make room."""

LAST_RESORT_NS = 1_000_000_000
"""From telling a run to end to ending the worker. Of a run that has only idle processors, its own
time on them counts, or PATIENCE_NS: it has to run to find out."""

PATIENCE_NS = 10_000_000_000

TOLD_AGAIN_NS = 60_000_000_000
"""Between two lines of the log about long runs of a model."""


class LongRuns:
    """``aside``: steps that take long, which others do not wait for."""

    def __init__(
        self,
        requests: RequestTable,
        runs: RunsInProgress,
        controller: PreemptionController,
        precedence: Precedence,
    ) -> None:
        """``runs``: the worker's."""
        self._requests = requests
        self._runs = runs.leading
        self._beside = runs.beside
        self._controller = controller
        self._precedence = precedence
        self.aside: list[Step] = []
        self._tells_from_ns: dict[str, int] = {}
        """When the log tells of a long run of a model again, by its name."""

    def attend(self, step: Step, *, is_load_waiting: bool) -> bool:
        """A step of the run on top has taken long. True where others go on beside it now."""
        now_ns = time.monotonic_ns()
        self._end_if_unwanted(step, now_ns)
        if not self._keeps_others_waiting(step, now_ns, is_load_waiting=is_load_waiting):
            return False
        if len(self.aside) >= MOST_ASIDE:
            text = f"{MOST_ASIDE} runs that took long went on beside them already"
            for job in self.aside[0].run.live:
                self._requests.fail(job, UnavailableError(f"the run was ended for others: {text}"))
            return False
        run = step.run
        if now_ns >= self._tells_from_ns.get(run.model_name, now_ns):
            self._tells_from_ns[run.model_name] = now_ns + TOLD_AGAIN_NS
            LOGGER.warning(
                f"a run of model '{run.model_name}' has computed one segment for "
                f"{(now_ns - step.began_ns) / 1e6:.0f} ms: others go on beside it"
            )
        telemetry.count(metrics.RUNS_ASIDE, run.labels)
        run.is_disturbed = True
        self.aside.append(step)
        self._runs.remove(run)
        self._controller.pauses()
        self.resume_top()
        step.helpers = self._precedence.stand_aside(step.thread)
        return True

    def take_back(self, step: Step) -> None:
        """It stood aside, and is over."""
        self.aside.remove(step)
        self._precedence.rejoin(step.helpers)

    def _keeps_others_waiting(self, step: Step, now_ns: int, *, is_load_waiting: bool) -> bool:
        """Whether something waits that should not wait for the step's end."""
        following = self._requests.queue.peek()
        if following is None and len(self._runs) == 1 and not is_load_waiting:
            return False
        if following is not None and more_urgent(following, step.run.jobs[0]):
            return True
        return _is_stalled(step, now_ns)

    def _end_if_unwanted(self, step: Step, now_ns: int) -> None:
        """Tell a run to end that nobody waits for any more, or that takes longer than it may."""
        run = step.run
        self._requests.fail_all_late(run.live, run.started_ns, now_ns)
        if run.live:
            return
        step.end(now_ns)
        if step.ended_ns is None or not _has_had_its_time(step, now_ns - step.ended_ns):
            return
        text = f"a run of model '{run.model_name}' does not end, although it was told to"
        self.end_worker(f"{text} {(now_ns - step.ended_ns) / 1e9:.0f} s ago", run)

    def end_worker(self, why: str, blamed: Run | None = None) -> None:
        """Nothing else ends what it computes. Other runs are computed by the next worker."""
        LOGGER.error(f"{why}: this worker ends, and the next one gets what else it was to compute")
        for run in (*self._runs, *self._beside):
            if run is not blamed:
                run.park()  # it is not to blame
        os.kill(os.getpid(), signal.SIGKILL)

    def lose_device(self, error: Exception) -> None:
        """Nothing of this process can use it any more."""
        for run in self._runs:
            run.session.lost_device()
        self.end_worker(f"the GPU fails ({error})", *self._runs[-1:])

    def look_after(self, beside: Sequence[Step]) -> None:
        """As of the run on top, of those that others do not wait for, and of companions' steps.
        Those that have stalled stand further back while there is more urgent work.
        """
        now_ns = time.monotonic_ns()
        for step in list(beside):
            self._end_if_unwanted(step, now_ns)
        for step in self.aside:
            self._end_if_unwanted(step, now_ns)
            if not step.is_stalled and _is_stalled(step, now_ns) and self._is_behind(step.run):
                step.is_stalled = True
                self._precedence.stand_further(step.thread, step.helpers)

    def _is_behind(self, run: Run) -> bool:
        """Whether something more urgent is computed, or waits."""
        following = self._requests.queue.peek()
        others = [*(each.jobs[0] for each in self._runs[-1:]), *([following] if following else ())]
        return any(more_urgent(other, run.jobs[0]) for other in others)

    def put_behind(self, run: Run) -> None:
        """A run whose step is over goes on behind all others."""
        run.park()
        self._runs.insert(0, run)
        if len(self._runs) == 1:
            self.resume_top()

    def resume_top(self) -> None:
        """The run on top, if any, goes on."""
        if self._runs:
            self._runs[-1].resume()
            self._controller.begins(self._runs[-1], time.monotonic_ns())


def _has_had_its_time(step: Step, waited_ns: int) -> bool:
    """To end, since it was told to so long ago."""
    if step.is_stalled and waited_ns <= PATIENCE_NS:
        return computed_ns(step.thread) - step.computed_ns > LAST_RESORT_NS
    return waited_ns > LAST_RESORT_NS


def _is_stalled(step: Step, now_ns: int) -> bool:
    expected_ns = step.run.profile.run_ns or 0.0
    return now_ns - step.began_ns > max(STALLED_NS, STALLED_RUNS * expected_ns)
