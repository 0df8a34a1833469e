"""Policies as what they are: functions of a snapshot. Times are literals."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from brisk.errors import InvalidConfigurationError
from brisk.scheduling.job import Job
from brisk.scheduling.job_class import JobClass
from brisk.scheduling.policies import (
    DEFAULT_POLICY,
    POLICIES,
    Limits,
    Policy,
    Realtime,
    Snapshot,
    find_policy,
)

QUIET = Realtime(count=0, end_ns=None, deadline_ns=None)
BUSY = Realtime(count=1, end_ns=1_000, deadline_ns=None)
NOW = Snapshot(now_ns=100, realtime=BUSY, share=0.0, limits=Limits(share=0.0))


def beside(**changes: object) -> Snapshot:
    """The snapshot with other facts about the real-time work."""
    return replace(NOW, realtime=replace(BUSY, **changes))  # type: ignore[arg-type]


def job(job_class: JobClass, deadline_ns: int | None = None, sequence: int = 1) -> Job:
    return Job(sequence, "model", job_class, 0, deadline_ns)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_best_effort_work_runs_while_there_is_no_other(policy: Policy) -> None:
    assert policy.admits(replace(NOW, realtime=QUIET))


@pytest.mark.parametrize("name", ["sequential", "shared"])
def test_without_control_nothing_is_held_and_nothing_interrupts(name: str) -> None:
    policy = POLICIES[name]
    assert policy.admits(NOW)
    assert not policy.interrupts(job(JobClass.REALTIME), job(JobClass.BESTEFFORT))


@pytest.mark.parametrize("name", ["preemptive", "deadline"])
def test_with_control_only_a_more_urgent_class_interrupts(name: str) -> None:
    interrupts = POLICIES[name].interrupts
    for waiting, running in itertools.product(JobClass, repeat=2):
        is_more_urgent = [*JobClass].index(waiting) < [*JobClass].index(running)
        assert interrupts(job(waiting), job(running, 1)) is is_more_urgent


def test_only_the_sequential_policy_runs_everything_in_one_worker() -> None:
    assert [name for name, policy in POLICIES.items() if not policy.separates] == ["sequential"]


def test_preemptive_holds_whatever_is_known() -> None:
    policy = POLICIES["preemptive"]
    assert not policy.admits(NOW)
    assert not policy.admits(beside(deadline_ns=10**9, end_ns=None))
    assert not policy.interrupts(job(JobClass.NORMAL, 1), job(JobClass.NORMAL))


def test_deadline_lets_best_effort_work_in_while_there_is_time_to_spare() -> None:
    admits = POLICIES["deadline"].admits
    assert admits(beside(deadline_ns=1_900)), "twice the remaining 900 still fit"
    assert not admits(beside(deadline_ns=1_899))
    assert not admits(beside(deadline_ns=None))
    assert not admits(beside(deadline_ns=10**9, end_ns=None))
    assert admits(replace(beside(deadline_ns=1_899), now_ns=950)), "it is nearly done"


def test_deadline_lets_the_earlier_of_a_class_interrupt() -> None:
    interrupts = POLICIES["deadline"].interrupts
    early, late = job(JobClass.NORMAL, 5), job(JobClass.NORMAL, 9)
    assert interrupts(early, late)
    assert not interrupts(late, early)
    assert interrupts(late, job(JobClass.NORMAL))
    first, second = job(JobClass.NORMAL, sequence=1), job(JobClass.NORMAL, sequence=2)
    assert not interrupts(first, second)
    assert not interrupts(job(JobClass.NORMAL, 5), job(JobClass.REALTIME))


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_minimum_share_is_given_whatever_the_policy_says(policy: Policy) -> None:
    hungry = replace(NOW, limits=Limits(share=0.2))
    assert policy.admits(replace(hungry, share=0.19))
    assert policy.admits(replace(hungry, share=0.2)) is policy.lets_run(hungry)


def test_an_unknown_policy_is_refused_with_the_nearest_name() -> None:
    assert find_policy(DEFAULT_POLICY).name == "preemptive"
    with pytest.raises(InvalidConfigurationError, match="'Preemptiv', did you mean 'preemptive'"):
        find_policy("Preemptiv")
