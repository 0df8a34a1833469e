"""Ends runs that take too long, and lets other runs go on concurrently with long ones.

The thread that has the worker's baton (``Relay``) calls all of this.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from brisk import telemetry
from brisk.errors import UnavailableError
from brisk.os_priority import Precedence, computed_ns
from brisk.runtime.heartbeat import BACKGROUND_PATIENCE_S
from brisk.runtime.log import LOGGER
from brisk.runtime.models.table import SessionTable
from brisk.runtime.preemption.controllers import PreemptionController
from brisk.runtime.requests.batch import Run, RunsInProgress
from brisk.runtime.requests.table import RequestTable
from brisk.runtime.sessions.attempts import ATTEMPTS
from brisk.runtime.worker.relay import Step
from brisk.scheduling.job import more_urgent
from brisk.scheduling.job_class import JobClass
from brisk.telemetry import metrics

STALLED_NS, STALLED_RUNS = 1_000_000_000, 4.0
"""A step keeps others of its class waiting too long when it exceeds both: a time, and a multiple
of what a run of its shapes takes. More urgent jobs wait only for ``relay.LONG_NS``. In a worker
that others may keep from the processors, its thread's processor time counts, or STARVED_NS."""

MOST_ASIDE = 4
"""The most long runs that others do not wait for; one more makes the first of them end."""

LAST_RESORT_NS = 1_000_000_000
"""The time from asking a run to end to ending the worker. For a run that yields to others, its own
processor time counts, or PATIENCE_NS: it has to run to see the request."""

PATIENCE_NS = 10_000_000_000

STARVED_NS = int(BACKGROUND_PATIENCE_S * 1e9)
"""The same in a worker that others may keep from the processors."""

TOLD_AGAIN_NS = 60_000_000_000
"""The time between two lines of the log about long runs of one model."""


class LongRuns:
    """The worker's long runs. ``aside``: long steps that other runs do not wait for."""

    def __init__(
        self,
        requests: RequestTable,
        sessions: SessionTable,
        runs: RunsInProgress,
        controller: PreemptionController,
        precedence: Precedence,
    ) -> None:
        """``runs``: the worker's runs in progress."""
        self._requests = requests
        self._sessions = sessions
        self._progress = runs
        self._runs = runs.leading
        self._companions = runs.companions
        self._controller = controller
        self._precedence = precedence
        self.aside: list[Step] = []
        self._tells_from_ns: dict[str, int] = {}
        """The time from which the log reports a long run of a model again, by the model's name."""

    @property
    def has_realtime(self) -> bool:
        """Whether a real-time run is computed: on top, concurrently or aside."""
        aside = any(step.run.job_class is JobClass.REALTIME for step in self.aside)
        return aside or self._progress.has_realtime

    def attend(self, step: Step, *, is_load_waiting: bool) -> bool:
        """Handle a long step of the run on top. Return True if others now go on concurrently."""
        now_ns = time.monotonic_ns()
        if self._controller.gets_leftovers and step.looked_computed_ns is None:
            step.looked_computed_ns = computed_ns(step.thread)
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
        self._controller.counts_aside(len(self.aside))
        self._controller.pauses()
        self.resume_top()
        step.helpers = self._precedence.stand_aside(step.thread)
        return True

    def take_back(self, step: Step) -> None:
        """Restore the priority of a step that yielded to others and is over."""
        self.aside.remove(step)
        self._controller.counts_aside(len(self.aside))
        self._precedence.rejoin(step.helpers)

    def _keeps_others_waiting(self, step: Step, now_ns: int, *, is_load_waiting: bool) -> bool:
        """Return whether a job, run or load waits that should not wait for the step's end."""
        following = self._requests.queue.peek()
        if following is None and len(self._runs) == 1 and not is_load_waiting:
            return False
        if following is not None and more_urgent(following, step.run.jobs[0]):
            return True
        return self._is_stalled(step, now_ns)

    def _is_stalled(self, step: Step, now_ns: int) -> bool:
        """Return whether a step has had more time than it should take."""
        most_ns = max(STALLED_NS, STALLED_RUNS * step.run.usual_ns)
        taken_ns = now_ns - step.began_ns
        if taken_ns > most_ns and step.looked_computed_ns and taken_ns < STARVED_NS:
            session = step.run.session
            if not (session.awaits_load or session.awaits_bytes):  # else it may wait, not starve
                taken_ns = computed_ns(step.thread) - step.looked_computed_ns
        return taken_ns > most_ns

    def _has_had_its_time(self, step: Step, waited_ns: int) -> bool:
        """Return whether the step, asked to end ``waited_ns`` ago, has had its time to end."""
        gets_leftovers = self._controller.gets_leftovers
        if not gets_leftovers and step not in self.aside:
            return waited_ns > LAST_RESORT_NS
        if waited_ns > (STARVED_NS if gets_leftovers else PATIENCE_NS):
            return True
        return computed_ns(step.thread) - step.computed_ns > LAST_RESORT_NS

    def _end_if_unwanted(self, step: Step, now_ns: int) -> None:
        """Ask a run to end if no client waits for it any more, or if it exceeds its time limit.

        If it does not end in time, kill the worker. The time begins when the model is loaded.
        """
        run = step.run
        self._requests.fail_all_late(run.live, run.started_ns, now_ns)
        if run.live:
            return
        step.end(now_ns)
        if run.session.awaits_load or run.session.awaits_bytes:
            step.ended_ns = now_ns  # it may wait for a load, which is not asked to end
            return
        if step.ended_ns is None or not self._has_had_its_time(step, now_ns - step.ended_ns):
            return
        text = f"a run of model '{run.model_name}' does not end, although it was told to"
        self.end_worker(f"{text} {(now_ns - step.ended_ns) / 1e9:.0f} s ago", run)

    def end_worker(
        self, why: str, blamed: Run | None = None, *, at_fault: Path | None = None
    ) -> None:
        """Kill this worker: nothing else ends its computing. The next one gets the other runs.

        ``at_fault``: the model whose load or exchange of sessions, if one is under way, is the
        reason."""
        LOGGER.error(f"{why}: this worker ends, and the next one gets what else it was to compute")
        for run in (*self._runs, *self._companions, *(step.run for step in self.aside)):
            if run is not blamed:
                run.park()  # the worker's end is not attributed to a parked run
        self._sessions.spare_loads(but_of=at_fault)
        ATTEMPTS.forget(but_of=at_fault)
        os.kill(os.getpid(), signal.SIGKILL)

    def lose_device(self, error: Exception) -> None:
        """End the worker: nothing in this process can use the failed device any more."""
        for run in self._runs:
            run.session.lost_device()
        self.end_worker(f"the GPU fails ({error})", *self._runs[-1:])

    def watch(self, companions: Sequence[Step]) -> None:
        """Watch the steps in ``aside`` and those of ``companions`` like the run on top, and the
        time limits of parked runs. Lower the priority of stalled steps further while there is more
        urgent work.
        """
        now_ns = time.monotonic_ns()
        for run in self._runs[:-1]:
            self._requests.fail_all_late(run.live, run.started_ns, now_ns)
        for step in list(companions):
            self._end_if_unwanted(step, now_ns)
        for step in self.aside:
            self._end_if_unwanted(step, now_ns)
            if (
                not step.is_stalled
                and self._is_behind(step.run)
                and self._is_stalled(step, now_ns)
            ):
                step.is_stalled = True
                self._precedence.stand_further(step.thread, step.helpers)

    def _is_behind(self, run: Run) -> bool:
        """Return whether a more urgent job is computed or waits."""
        following = self._requests.queue.peek()
        others = [*(each.jobs[0] for each in self._runs[-1:]), *([following] if following else ())]
        return any(more_urgent(other, run.jobs[0]) for other in others)

    def put_behind(self, run: Run) -> None:
        """Queue a run whose step is over behind all other runs."""
        run.park()
        self._runs.insert(0, run)
        if len(self._runs) == 1:
            self.resume_top()

    def resume_top(self) -> None:
        """Let the run on top, if any, go on."""
        if self._runs:
            self._runs[-1].resume()
            self._controller.begins(self._runs[-1], time.monotonic_ns())
