"""What a background worker learns of runs that others did not wait for."""

from __future__ import annotations

import time

from brisk.protocol.runtime_paths import Role
from brisk.runtime.heartbeat import Heartbeat
from brisk.runtime.peers.connections import Connections
from brisk.runtime.preemption.controllers import Background
from brisk.runtime.preemption.gate import Gate
from brisk.runtime.sessions.device import open_queues
from brisk.runtime.settings import read_settings
from brisk.runtime.worker.relay import Step
from brisk.runtime.worker.worker import Worker
from brisk.scheduling.job import JobState
from brisk.scheduling.job_class import JobClass
from brisk.scheduling.policies import POLICIES, Limits
from brisk.scheduling.times import ProfileTable
from support.runtime.gates import job, run_of

TAKEN_NS = 300_000_000


def test_a_step_that_ended_aside_counts_as_long_as_it_took() -> None:
    connections = Connections([])
    worker = Worker(
        connections,
        Heartbeat(),
        "cpu",
        open_queues("cpu", 1),
        Background(Gate(), POLICIES["preemptive"], Limits(share=0.0)),
        ProfileTable(),
        read_settings({}),
        Role.BACKGROUND,
    )
    one = job(1, JobClass.BESTEFFORT)
    one.state, one.peer.is_open = JobState.RUNNING, False
    one.peer.jobs[1] = one
    run = run_of(one)
    run.computed_ns = TAKEN_NS
    worker._conclude(Step(run, time.monotonic_ns() - TAKEN_NS, is_last=True))
    connections.close()
    assert run.profile.run_ns is not None
    assert 2 * TAKEN_NS <= run.profile.run_ns < 2 * TAKEN_NS + 1e9
