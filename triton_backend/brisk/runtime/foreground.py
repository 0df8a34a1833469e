"""The foreground worker's half: closes the gate while there is real-time work, and describes it."""

from __future__ import annotations

from brisk.runtime.batch import RequestJob, Run
from brisk.runtime.gate import Gate
from brisk.runtime.pacing import Pacing
from brisk.scheduling.job import JobClass
from brisk.scheduling.policies import Limits, Policy, Trial


class Foreground(Pacing):
    """Never holds a run: here policy is who interrupts whom, and what the gate says."""

    def __init__(self, gate: Gate, policy: Policy, limits: Limits) -> None:
        self.policy = policy
        self._gate = gate
        self._limits = limits
        self._realtime: dict[int, RequestJob] = {}
        self._layers_beside = 0

    def admitted(self, job: RequestJob) -> None:
        if job.job_class is JobClass.REALTIME:
            self._realtime[job.sequence] = job
            self._tell()

    def ended(self, job: RequestJob) -> None:
        if self._realtime.pop(job.sequence, None) is not None:
            self._tell()

    def _tell(self) -> None:
        waiting = self._realtime.values()
        if not waiting:
            self._gate.open()
            return
        due_ns = [job.deadline_ns for job in waiting if job.deadline_ns is not None]
        self._gate.close(len(waiting), min(due_ns, default=None))

    def begins(self, run: Run, now_ns: int) -> None:
        if run.jobs[0].job_class is not JobClass.REALTIME:
            return
        expected_ns = run.profile.run_ns
        end_ns = None if expected_ns is None else int(now_ns + expected_ns)
        trial = run.profile.next_trial(self._limits.slowdown)
        self._gate.describe_run(end_ns, run.threads, run.profile.slowdown, trial)
        self._layers_beside = self._gate.layers_beside

    def holds(self, run: Run, now_ns: int) -> bool:
        return False

    def layer_done(self, run: Run, taken_ns: int) -> None:
        run.layers_ns.append(taken_ns)

    def pauses(self) -> None:
        return None

    def finished(self, run: Run, now_ns: int) -> None:
        """A run is beside best-effort work if a layer of it began meanwhile, or outlasted it."""
        if run.was_parked:
            return
        run.profile.learn_layers(run.layers_ns)
        beside = False
        if run.jobs[0].job_class is JobClass.REALTIME:
            gate = self._gate
            beside = gate.layer_runs or gate.layers_beside != self._layers_beside
        run.profile.learn_run(now_ns - run.started_ns, beside)

    def heard(self) -> None:
        return None
