"""The background worker's half: gives way to everything else on the machine."""

from __future__ import annotations

from typing import ClassVar

from brisk import telemetry
from brisk.runtime.preemption.controller import PreemptionController
from brisk.runtime.preemption.gate import Gate
from brisk.runtime.worker.batch import Run
from brisk.scheduling.job import JobClass
from brisk.scheduling.policies import Limits, Policy, Snapshot
from brisk.scheduling.share import ShareMeter
from brisk.telemetry import metrics


class Background(PreemptionController):
    """Holds a run's next layer while the policy says so.

    It looks at its sockets rarely, since the gate tells what is urgent: with looks every 0.2 ms,
    five networks in closed loops got 33 to 57 runs a second, not 53 to 66.
    """

    quanta_ns: ClassVar = dict.fromkeys(JobClass, 2_000_000)

    def __init__(self, gate: Gate, policy: Policy, limits: Limits) -> None:
        super().__init__(gate, policy, limits)
        self.alarm = gate.alarm
        self._share = ShareMeter()
        self._held_since_ns: int | None = None

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
            self.gate.hold_layers()
            self._share.change(now_ns, is_held=True)
            self._held_since_ns = now_ns
            return True
        self._share.change(now_ns, is_held=False)
        self.gate.begin_layer()
        return False

    def pauses(self) -> None:
        self.gate.pause_layers()
        self._share.rest()
        self._held_since_ns = None

    def finished(self, run: Run, now_ns: int) -> None:
        """Without the time that its layers were held."""
        if not run.has_early_answers:
            run.profile.learn(run.computed_ns)
