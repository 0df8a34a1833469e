"""Both workers' halves of a policy around one gate, in virtual time."""

from __future__ import annotations

import select

from brisk.runtime.preemption.controllers import Background, Foreground
from brisk.runtime.preemption.gate import Gate
from brisk.runtime.requests.batch import Run
from brisk.runtime.requests.table import Request
from brisk.scheduling.job_class import JobClass
from brisk.scheduling.policies import POLICIES, Limits
from brisk.scheduling.times import ProfileTable, RunProfile
from support.runtime.requests import AFrame, ASession, a_request

LIMITS = Limits(share=0.0)


class Pair:
    """Both workers' halves around one gate."""

    def __init__(self, policy: str, limits: Limits = LIMITS) -> None:
        self.gate = Gate()
        self.profiles = ProfileTable()
        self.now_ns = 0
        chosen = POLICIES[policy]
        self.foreground = Foreground(self.gate, chosen, limits, self.profiles, lambda: self.now_ns)
        self.background = Background(self.gate, chosen, limits)

    def rings(self) -> bool:
        return bool(select.select([self.gate.alarm], [], [], 0)[0])


def job(
    sequence: int, job_class: JobClass = JobClass.REALTIME, deadline_ns: int | None = None
) -> Request:
    return a_request(sequence, deadline_ns=deadline_ns, job_class=job_class)


def run_of(
    one: Request,
    profile: RunProfile | None = None,
    started_ns: int = 0,
    session: ASession | None = None,
) -> Run:
    return Run(
        jobs=[one],
        rows=[range(1)],
        frame=AFrame(),
        started_ns=started_ns,
        session=session or ASession(),
        profile=profile or RunProfile(),
        is_disturbed=False,
    )


LAZY = run_of(job(99, JobClass.BESTEFFORT))
