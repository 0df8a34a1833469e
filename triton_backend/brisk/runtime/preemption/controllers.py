"""Each worker's half of a policy: when a segment may begin, and what the other worker is shown.

The foreground worker closes the gate during real-time work and describes that work there; the
background worker yields to everything else on the machine.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

from brisk import telemetry
from brisk.runtime.preemption.gate import Gate
from brisk.runtime.preemption.suspension import Suspension
from brisk.runtime.requests.batch import Run
from brisk.runtime.requests.table import Request
from brisk.scheduling.job import JobState
from brisk.scheduling.job_class import JobClass
from brisk.scheduling.policies import Limits, Policy, Snapshot
from brisk.scheduling.refusals import refuse_if_late
from brisk.scheduling.times import Demand, MinimumShare, ProfileTable, RunProfile, ShareMeter
from brisk.telemetry import metrics

LONGEST_SUSPENSION_NS = 100_000_000
"""The suspension after which best-effort work is not stopped for the next run: it may hold what a
load needs."""


class PreemptionController:
    """Receives jobs and runs as they come and go. Used by the worker's main thread."""

    quanta_ns: ClassVar[Mapping[JobClass, int]]
    """The time between two looks at the sockets while a run of a class computes, in whole
    segments. A look takes some microseconds, and lets what can interrupt the run come that much
    sooner."""
    gets_leftovers: ClassVar[bool] = False
    """Whether others on the machine may keep the worker from the processors for long."""
    alarm: int | None = None
    """An eventfd that is written to when a held run should be checked again."""

    def __init__(self, gate: Gate, policy: Policy, limits: Limits) -> None:
        self.policy = policy
        self.gate = gate
        self._limits = limits

    def check(self, job: Request) -> None:
        """Raises UnavailableError if it is known that the job cannot be in time."""

    def admitted(self, job: Request) -> None:
        """Note that a job has been taken in."""

    def ended(self, job: Request) -> None:
        """Note that an admitted job has been answered, or that its peer has gone."""

    def begins(self, run: Run, now_ns: int) -> None:
        """Note that a run is about to begin, or goes on after it was parked."""

    def owes_normal(self, now_ns: int) -> bool:
        """Return whether a normal run goes before real-time ones now (``MinimumShare``)."""
        return False

    def holds(self, run: Run, now_ns: int) -> bool:
        """Return whether the run's next segment must wait."""
        return False

    def pauses(self) -> None:
        """Note that no segment runs until ``holds`` is called again, but for those aside."""

    def counts_aside(self, count: int) -> None:
        """Note how many segments other runs do not wait for: these run until they end."""

    def finished(self, run: Run, now_ns: int) -> None:
        """Note that a run has computed its last segment; it is not answered yet."""


class _Due(NamedTuple):
    """A real-time job with a deadline."""

    deadline_ns: int
    number: int
    job: Request
    profile: RunProfile


class Foreground(PreemptionController):
    """The foreground worker's controller, which never holds a run. Its policy decides which run
    interrupts which, what the gate reports, and whether a current best-effort segment goes on.
    Between two runs, normal work that has had less than its minimum share goes before real-time
    work.

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
        self._realtime: set[int] = set()
        """Numbers of the real-time jobs that wait or run."""
        self._due: list[_Due] = []
        """Those of them that have deadlines, the most urgent first."""
        self._run_end_ns: int | None = None
        """The expected end of the real-time run that is computed; None if it is unknown, or if
        there is none."""
        self._computed: Request | None = None
        """The first request of the run that began last."""
        self._normal: set[int] = set()
        """Numbers of the normal jobs that wait or run."""
        self._normal_share = MinimumShare(limits.normal_share)
        self._computes: JobClass | None = None

    def check(self, job: Request) -> None:
        """Refuse only real-time jobs with a deadline: others may be in time by luck."""
        if job.job_class is not JobClass.REALTIME or job.deadline_ns is None:
            return
        before = self._due[: self._place(job.deadline_ns, job.number)]
        waiting = JobState.WAITING
        ahead = [profile.run_ns for _, _, other, profile in before if other.state is waiting]
        own_ns = self._profiles.find(job.profile_key).hoped_ns(job.deadline_ns - job.arrival_ns)
        now_ns, end_ns, computed = job.arrival_ns, self._run_end_ns, self._computed
        if computed is not None and self.policy.interrupts(job, computed):
            end_ns = None
        refuse_if_late(now_ns, job.deadline_ns, end_ns, ahead, own_ns, job.came_ns)

    def _place(self, deadline_ns: int, number: int) -> int:
        """Return the place in ``_due`` of a job with this deadline and number."""
        return bisect_left(self._due, (deadline_ns, number), key=lambda each: each[:2])

    def admitted(self, job: Request) -> None:
        if job.job_class is JobClass.REALTIME:
            self._realtime.add(job.number)
            if job.deadline_ns is not None:
                profile = self._profiles.find(job.profile_key)
                profile.let_in(job.deadline_ns - job.arrival_ns)
                place = self._place(job.deadline_ns, job.number)
                self._due.insert(place, _Due(job.deadline_ns, job.number, job, profile))
            self._tell()
        elif job.job_class is JobClass.NORMAL:
            self._normal.add(job.number)
        self._measure(self._clock_ns())

    def ended(self, job: Request) -> None:
        if job.number in self._realtime:
            self._realtime.remove(job.number)
            if job.deadline_ns is not None:
                del self._due[self._place(job.deadline_ns, job.number)]
            self._tell()
        self._normal.discard(job.number)
        self._measure(self._clock_ns())

    def _measure(self, now_ns: int) -> None:
        """Report to the minimum share the state of normal work from now on."""
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
        count = len(self._realtime)
        if not count:
            self._run_end_ns = None
            self.gate.open()
            self.suspension.resume()
            return
        if self.gate.is_open:
            telemetry.count(metrics.GATE_CLOSURES)
        self.gate.close(count, self._due[0].deadline_ns if self._due else None)

    def begins(self, run: Run, now_ns: int) -> None:
        self._computes, self._computed = run.job_class, run.jobs[0]
        self._measure(now_ns)
        if run.job_class is not JobClass.REALTIME:
            return
        run_ns = run.profile.run_ns
        left_ns = None if run_ns is None else max(0, int(run_ns) - run.computed_ns)
        self._run_end_ns = None if left_ns is None else now_ns + left_ns
        self.gate.expect_end(self._run_end_ns)
        self._suspend_or_resume(run, now_ns)

    def _suspend_or_resume(self, run: Run, now_ns: int) -> None:
        """Let a segment under way go on concurrently with ``run`` if the policy lets it begin."""
        if not self.gate.page.segment_runs:
            return
        suspended_ns = self.suspension.since_ns
        if (
            # a stopped process may hold a folder's lock that this model's loader threads wait for
            run.session.is_loading
            # and anything else that waits for the other worker waits for a bounded time
            or (suspended_ns is not None and now_ns - suspended_ns > LONGEST_SUSPENSION_NS)
            or self.admits_segments(now_ns)
        ):
            self.suspension.resume()
        else:
            self.suspension.suspend(now_ns)

    def admits_segments(self, now_ns: int) -> bool:
        """Return whether the policy lets best-effort segments run now."""
        return self._limits.share > 0 or self.policy.lets_run(
            Snapshot(now_ns, self.gate.realtime(), 0.0, self._limits)
        )

    def pauses(self) -> None:
        self._computes = self._computed = self._run_end_ns = None  # it may have ended early
        self._measure(self._clock_ns())

    def finished(self, run: Run, now_ns: int) -> None:
        """Learn the run's duration unless exits answered: profiles are of the whole model, since
        what an exit saves is unknown beforehand."""
        if not run.is_disturbed and not run.has_early_answers:
            run.profile.learn(now_ns - run.started_ns)


class Background(PreemptionController):
    """The background worker's controller: holds a run's next segment while the policy requires it.

    The worker looks at its sockets rarely, since the gate reports what is urgent: with looks every
    0.2 ms, five networks in closed loops got 33 to 57 runs a second, not 53 to 66.
    """

    quanta_ns: ClassVar = dict.fromkeys(JobClass, 2_000_000)
    gets_leftovers = True

    def __init__(self, gate: Gate, policy: Policy, limits: Limits) -> None:
        super().__init__(gate, policy, limits)
        self.alarm = gate.alarm
        self._share = ShareMeter()
        self._held_since_ns: int | None = None
        self._has_aside = False

    def counts_aside(self, count: int) -> None:
        self._has_aside = count > 0

    def holds(self, run: Run, now_ns: int) -> bool:
        if self._held_since_ns is not None:
            telemetry.count(metrics.HELD_SECONDS, (), now_ns - self._held_since_ns)
            self._held_since_ns = None
        if not self.gate.is_open and not self.policy.admits(
            Snapshot(
                now_ns=now_ns,
                realtime=self.gate.realtime(),
                share=self._share.share(now_ns),
                limits=self._limits,
            )
        ):
            self.gate.hold_segments(others_run=self._has_aside)
            self._share.change(now_ns, is_held=True)
            self._held_since_ns = now_ns
            return True
        self._share.change(now_ns, is_held=False)
        self.gate.begin_segment()
        return False

    def pauses(self) -> None:
        self.gate.pause_segments(others_run=self._has_aside)
        self._share.rest()
        self._held_since_ns = None

    def finished(self, run: Run, now_ns: int) -> None:
        """Note the end of ``run``, without the time that its segments were held."""
        if not run.has_early_answers:
            run.profile.learn(run.computed_ns)
