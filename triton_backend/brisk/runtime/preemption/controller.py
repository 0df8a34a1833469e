"""A worker's half of a policy: when a layer may begin, and what the other worker is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from brisk.runtime.preemption.gate import Gate
from brisk.runtime.worker.batch import Request, Run
from brisk.scheduling.job import JobClass
from brisk.scheduling.policies import Limits, Policy


class PreemptionController:
    """Told of jobs and runs as they come and go; used by the worker's main thread.

    ``alarm`` is an eventfd that is written to when a held run should be looked at again.
    ``quanta_ns``: time between two looks at the sockets while a run of a class computes, in whole
    layers. A look takes some microseconds, and what can interrupt the run comes that much sooner.
    """

    quanta_ns: ClassVar[Mapping[JobClass, int]]
    alarm: int | None = None

    def __init__(self, gate: Gate, policy: Policy, limits: Limits) -> None:
        self.policy = policy
        self.gate = gate
        self._limits = limits

    def check(self, job: Request) -> None:
        """Raise UnavailableError where it is known that the job cannot be in time."""

    def admitted(self, job: Request) -> None:
        """A job has been taken in."""

    def ended(self, job: Request) -> None:
        """A job that was admitted has been answered, or its peer has gone."""

    def begins(self, run: Run, now_ns: int) -> None:
        """A run is about to begin, or goes on after it was parked."""

    def owes_normal(self, now_ns: int) -> bool:
        """Whether a normal run goes before real-time ones now: see ``MinimumShare``."""
        return False

    def holds(self, run: Run, now_ns: int) -> bool:
        """Whether the run's next layer must wait."""
        return False

    def pauses(self) -> None:
        """No layer runs until ``holds`` is asked again."""

    def finished(self, run: Run, now_ns: int) -> None:
        """A run has computed its last layer; it is not answered yet."""
