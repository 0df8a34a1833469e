"""What a background worker does beside runs that take long, and what it learns of them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from brisk.protocol.runtime_paths import Role
from brisk.runtime.heartbeat import Heartbeat
from brisk.runtime.peers.connections import Connections
from brisk.runtime.preemption.controllers import Background
from brisk.runtime.preemption.gate import Gate
from brisk.runtime.sessions.device import open_queues
from brisk.runtime.settings import read_settings
from brisk.runtime.worker.relay import Step
from brisk.runtime.worker.worker import LONGEST_UNCHECKED_NS, Worker
from brisk.scheduling.job import JobState
from brisk.scheduling.job_class import JobClass
from brisk.scheduling.policies import POLICIES, Limits
from brisk.scheduling.times import ProfileTable
from support.runtime.gates import job, run_of

TAKEN_NS = 300_000_000


@pytest.fixture
def worker() -> Iterator[Worker]:
    connections = Connections([])
    yield Worker(
        connections,
        Heartbeat(),
        "cpu",
        open_queues("cpu", 1),
        Background(Gate(), POLICIES["preemptive"], Limits(share=0.0)),
        ProfileTable(),
        read_settings({}),
        Role.BACKGROUND,
    )
    connections.close()


def test_a_step_that_ended_aside_counts_as_long_as_it_took(worker: Worker) -> None:
    one = job(1, JobClass.BESTEFFORT)
    one.state, one.peer.is_open = JobState.RUNNING, False
    one.peer.jobs[1] = one
    run = run_of(one)
    run.computed_ns = TAKEN_NS
    worker._conclude(Step(run, time.monotonic_ns() - TAKEN_NS, is_last=True))
    assert run.profile.run_ns is not None
    assert 2 * TAKEN_NS <= run.profile.run_ns < 2 * TAKEN_NS + 1e9


def test_a_load_that_takes_too_long_is_given_up_beside_a_step_that_does_not_end(
    worker: Worker,
) -> None:
    one, begun_ns = job(1, JobClass.BESTEFFORT), time.monotonic_ns()
    one.state = JobState.RUNNING
    run = run_of(one, started_ns=begun_ns)
    worker._runs.append(run)
    given_up: list[str] = []
    watch = worker._loader.watch
    watch.longest_s = 0.0
    with watch.over("loading a model", lambda: True, lambda: given_up.append("a model")):
        assert not worker._attend(Step(run, begun_ns))
        assert given_up == [], "it looks now and then"
        worker._looked_around_ns -= LONGEST_UNCHECKED_NS
        assert not worker._attend(Step(run, begun_ns))
    assert given_up == ["a model"]
