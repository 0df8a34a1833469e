"""Both workers' halves of a policy around one gate, in virtual time."""

from __future__ import annotations

import select
from types import SimpleNamespace
from typing import Any, cast

from brisk.protocol.records import InferForm
from brisk.runtime.preemption.best_effort import Background
from brisk.runtime.preemption.gate import Gate
from brisk.runtime.preemption.realtime import Foreground
from brisk.runtime.worker.batch import RequestJob, Run
from brisk.scheduling.job import Job, JobClass
from brisk.scheduling.policies import POLICIES, Limits
from brisk.scheduling.profile import ProfileTable, RunProfile

LIMITS = Limits(slowdown=1.05, share=0.0)


class Pair:
    """Both workers' halves around one gate."""

    def __init__(self, policy: str, limits: Limits = LIMITS) -> None:
        self.gate = Gate()
        self.profiles = ProfileTable()
        self.now_ns = 0
        chosen = POLICIES[policy]
        self.foreground = Foreground(
            self.gate, chosen, limits, self.profiles, 2, lambda: self.now_ns
        )
        self.background = Background(self.gate, chosen, limits, processors=2)

    def rings(self) -> bool:
        return bool(select.select([self.gate.alarm], [], [], 0)[0])


def job(
    sequence: int, job_class: JobClass = JobClass.REALTIME, deadline_ns: int | None = None
) -> RequestJob:
    payload: Any = SimpleNamespace(
        binding=SimpleNamespace(key="model"),
        record=SimpleNamespace(form=InferForm(0, (), (), "realtime")),
    )
    return Job(sequence, "model", job_class, 0, deadline_ns, payload)


def run_of(one: RequestJob, profile: RunProfile | None = None, started_ns: int = 0) -> Run:
    fake = SimpleNamespace(
        jobs=[one],
        job_class=one.job_class,
        profile=profile or RunProfile(),
        frame=SimpleNamespace(position=0),
        threads=2,
        layers_ns=[],
        is_disturbed=False,
        has_early_answers=False,
        started_ns=started_ns,
        session=SimpleNamespace(threads=2, is_loading=False),
    )
    return cast(Run, fake)


LAZY = run_of(job(99, JobClass.BESTEFFORT))
