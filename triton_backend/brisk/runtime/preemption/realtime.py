"""The foreground worker's half: closes the gate during real-time work, and describes that."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import ClassVar

from brisk import telemetry
from brisk.runtime.log import LOGGER
from brisk.runtime.preemption.controller import PreemptionController
from brisk.runtime.preemption.gate import Gate
from brisk.runtime.worker.batch import Request, Run
from brisk.scheduling.job import JobClass, JobState, most_urgent_first
from brisk.scheduling.policies import Limits, Policy, Snapshot
from brisk.scheduling.profile import ProfileTable
from brisk.scheduling.queue import refuse_if_late
from brisk.scheduling.share import Demand, MinimumShare
from brisk.telemetry import metrics

LONGEST_SUSPENSION_NS = 100_000_000
"""Then best-effort work is not stopped for the next run: it may hold what a load waits for."""


class Foreground(PreemptionController):
    """Never holds a run: here policy is who interrupts whom, what the gate says, and whether a
    best-effort layer that is under way goes on. Normal work that has had less than its minimum
    share goes before real-time work between two runs.

    Refuses a real-time request that is sure to be late.
    """

    quanta_ns: ClassVar = {
        JobClass.REALTIME: 1_000_000,
        JobClass.NORMAL: 200_000,
        JobClass.BESTEFFORT: 200_000,
    }

    def __init__(
        self,
        gate: Gate,
        policy: Policy,
        limits: Limits,
        profiles: ProfileTable,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(gate, policy, limits)
        self.suspension = Suspension(gate)
        self._profiles = profiles
        self._clock_ns = clock_ns
        self._realtime: dict[int, Request] = {}
        self._run_end_ns: int | None = None
        """When the last real-time run that began is expected to end."""
        self._normal: set[int] = set()
        """Numbers of the normal jobs that wait or run."""
        self._normal_share = MinimumShare(limits.normal_share)
        self._computes: JobClass | None = None

    def check(self, job: Request) -> None:
        """Only real-time jobs with a deadline are refused: others may be in time by luck."""
        if job.job_class is not JobClass.REALTIME or job.deadline_ns is None:
            return
        key = most_urgent_first(job)
        ahead = [
            self._profiles.run_ns(other.profile_key)
            for other in self._realtime.values()
            if other.state is JobState.WAITING and most_urgent_first(other) < key
        ]
        own_ns = self._profiles.run_ns(job.profile_key)
        refuse_if_late(job.arrival_ns, job.deadline_ns, self._run_end_ns, ahead, own_ns)

    def admitted(self, job: Request) -> None:
        if job.job_class is JobClass.REALTIME:
            self._realtime[job.number] = job
            self._tell()
        elif job.job_class is JobClass.NORMAL:
            self._normal.add(job.number)
        self._measure(self._clock_ns())

    def ended(self, job: Request) -> None:
        if self._realtime.pop(job.number, None) is not None:
            self._tell()
        self._normal.discard(job.number)
        self._measure(self._clock_ns())

    def _measure(self, now_ns: int) -> None:
        """Tell the minimum share what becomes of normal work from now on."""
        if not self._normal or self._computes is None:
            demand = Demand.NONE
        elif self._computes is not JobClass.NORMAL:
            demand = Demand.HELD
        else:
            demand = Demand.CONTESTED if self._realtime else Demand.FREE
        self._normal_share.change(demand, now_ns)

    def owes_normal(self, now_ns: int) -> bool:
        return self._normal_share.is_owed(now_ns)

    def _tell(self) -> None:
        waiting = self._realtime.values()
        if not waiting:
            self._run_end_ns = None
            self.gate.open()
            self.suspension.resume()
            return
        if self.gate.is_open:
            telemetry.count(metrics.GATE_CLOSURES)
        due_ns = [job.deadline_ns for job in waiting if job.deadline_ns is not None]
        self.gate.close(len(waiting), min(due_ns, default=None))

    def begins(self, run: Run, now_ns: int) -> None:
        self._computes = run.job_class
        self._measure(now_ns)
        if run.job_class is not JobClass.REALTIME:
            return
        run_ns = run.profile.run_ns
        self._run_end_ns = None if run_ns is None else int(now_ns + run_ns)
        self.gate.expect_end(self._run_end_ns)
        self._suspend_or_resume(run, now_ns)

    def _suspend_or_resume(self, run: Run, now_ns: int) -> None:
        """A layer under way goes on beside ``run`` where the policy would let it begin."""
        if not self.gate.page.layer_runs:
            return
        suspended_ns = self.suspension.since_ns
        if (
            # a stopped process may hold the lock of a folder that lanes of this model wait for
            run.session.is_loading
            # and whatever else waits for the other worker, does so for a bounded time
            or (suspended_ns is not None and now_ns - suspended_ns > LONGEST_SUSPENSION_NS)
            or self.admits_layers(now_ns)
        ):
            self.suspension.resume()
        else:
            self.suspension.suspend(now_ns)

    def admits_layers(self, now_ns: int) -> bool:
        """Whether the policy lets best-effort layers run now."""
        return self._limits.share > 0 or self.policy.lets_run(
            Snapshot(now_ns, self.gate.realtime(), 0.0, self._limits)
        )

    def pauses(self) -> None:
        self._computes = None
        self._measure(self._clock_ns())

    def finished(self, run: Run, now_ns: int) -> None:
        """Profiles are of the whole model: what an exit saved is not known before."""
        if not run.is_disturbed and not run.has_early_answers:
            run.profile.learn(now_ns - run.started_ns)


# Best-effort work stopped in the middle of a layer (REEF's reset, 4.3, on processors).
#
# Niceness 19 gives a layer that a real-time request has come upon turns on the request's
# processors until it ends: two to four in a run of 12 to 20 ms, for 0.3 to 0.5 ms each, a tenth of
# the run. A stopped process takes none, and goes on where it was: nothing is computed again.
#
# A signal asks for no privilege, only for a descriptor of the process (``pidfd_open``, Linux 5.3):
# numbers of processes are given again.


class Suspension:
    """Of the worker behind ``gate``; used by the foreground worker's main thread."""

    def __init__(self, gate: Gate, tell: Callable[[str], None] = LOGGER.warning) -> None:
        self._gate = gate
        self._tell = tell
        self._is_allowed = True
        self._process = 0
        self._handle: int | None = None
        self.since_ns: int | None = None
        """When it was stopped; None where it is not."""

    def suspend(self, now_ns: int) -> None:
        """Nothing where it is stopped already, has gone, or may not be."""
        if self.since_ns is None and self._send(signal.SIGSTOP):
            self.since_ns = now_ns
            telemetry.count(metrics.FREEZES)

    def resume(self) -> None:
        """Nothing where it was not stopped here."""
        if self.since_ns is not None:
            self.since_ns = None
            self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> bool:
        if not self._is_allowed:
            return False
        try:
            if self._gate.page.process != self._process:
                self._open()
            if self._handle is None:
                return False
            signal.pidfd_send_signal(self._handle, number)
        except ProcessLookupError:
            return False
        except (OSError, AttributeError) as error:
            self._is_allowed = False
            self._tell(
                f"best-effort layers cannot be stopped half-way ({error}): those that real-time "
                "requests come upon go on beside these; see 'brisk doctor'"
            )
            return False
        return True

    def _open(self) -> None:
        """A handle of the present process."""
        if self._handle is not None:
            os.close(self._handle)
        self._handle, self._process = None, self._gate.page.process
        if self._process:
            self._handle = os.pidfd_open(self._process)
            # The supervisor takes the number from the gate before it lets the kernel give it
            # again: one that is still there was the worker's when the handle was opened.
            if self._gate.page.process != self._process:
                os.close(self._handle)
                self._handle, self._process = None, 0
