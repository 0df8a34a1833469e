"""The gate and the workers' halves of a policy, stepped through by hand in virtual time."""

from __future__ import annotations

import pytest

from brisk.errors import UnavailableError
from brisk.scheduling.job import JobClass, JobState
from brisk.scheduling.policies import Limits, PaddingTrial
from brisk.scheduling.profile import FIRST_PAIRS, RunProfile
from brisk.telemetry import STATISTICS, metrics
from support.runtime.gates import LAZY, Pair, job, run_of


class Learning(RunProfile):
    """Remembers what it was taught."""

    def __init__(self) -> None:
        super().__init__()
        self.learnt: list[tuple[int, bool, int]] = []

    def learn_run(self, taken_ns: int, beside: bool, threads: int = 1) -> None:
        self.learnt.append((taken_ns, beside, threads))


def closed() -> int:
    """How often gates of this process were closed."""
    samples = STATISTICS.samples()
    return sum(each.values[0] for each in samples if each.metric == metrics.GATE_CLOSURES.name)


def test_a_layer_is_held_from_the_arrival_of_real_time_work_to_its_answer() -> None:
    pair = Pair("preemptive")
    before = closed()
    urgent = [job(1), job(2)]
    assert not pair.background.holds(LAZY, 0)
    for one in urgent:
        pair.foreground.admitted(one)
        assert pair.background.holds(LAZY, 1)
    pair.foreground.ended(urgent[0])
    assert pair.background.holds(LAZY, 2)
    assert not pair.rings()
    pair.foreground.ended(urgent[1])
    assert pair.rings()
    assert not pair.background.holds(LAZY, 3)
    assert closed() == before + 1


def test_other_classes_do_not_close_the_gate() -> None:
    pair = Pair("preemptive")
    pair.foreground.admitted(job(1, JobClass.NORMAL))
    pair.foreground.begins(run_of(job(1, JobClass.NORMAL)), 0)
    assert pair.gate.is_open


def test_the_alarm_rings_only_for_who_sleeps() -> None:
    pair = Pair("preemptive")
    one = job(1)
    pair.foreground.admitted(one)
    pair.foreground.ended(one)
    assert not pair.rings(), "no layer was held"


def test_a_job_that_was_never_admitted_opens_nothing() -> None:
    pair = Pair("preemptive")
    pair.foreground.admitted(job(1))
    pair.foreground.ended(job(2))
    assert not pair.gate.is_open


def test_the_background_learns_what_the_foreground_expects() -> None:
    pair, profile = Pair("padded"), RunProfile()
    for _ in range(FIRST_PAIRS):
        profile.learn_run(1_000, beside=False)
        profile.learn_run(1_020, beside=True)
    profile.learn_run(1_000, beside=False)
    one = job(1, deadline_ns=9_000)
    pair.foreground.admitted(one)
    pair.foreground.begins(run_of(one, profile), 500)
    realtime = pair.gate.realtime()
    assert (realtime.count, realtime.end_ns, realtime.threads) == (1, 1_500, 2)
    assert realtime.deadline_ns == 9_000
    assert realtime.slowdown == pytest.approx(1.02)
    pair.foreground.ended(one)
    assert pair.gate.realtime().end_ns is None


def test_the_background_learns_for_how_much_of_the_time_there_is_real_time_work() -> None:
    pair = Pair("padded")
    for sequence in range(200):
        pair.foreground.admitted(job(sequence))
        pair.foreground.begins(run_of(job(sequence)), pair.now_ns)
        pair.now_ns += 10_000_000
        pair.foreground.ended(job(sequence))
        pair.now_ns += 30_000_000
    pair.foreground.admitted(job(200))
    pair.foreground.begins(run_of(job(200)), pair.now_ns)
    assert pair.gate.realtime().load == pytest.approx(0.25, abs=0.02)


def test_a_layer_beside_a_run_waits_where_more_requests_would_wait_for_that_run() -> None:
    """The same slowdown of one run, at little and at much real-time work."""
    pair, profile = Pair("padded"), RunProfile()
    for _ in range(FIRST_PAIRS):
        profile.learn_run(1_000, beside=False)
        profile.learn_run(1_030, beside=True)
    held = []
    for idle_ns in (40_000_000, 1_000_000):
        for sequence in range(200):
            pair.foreground.admitted(job(sequence))
            pair.now_ns += 10_000_000
            pair.foreground.ended(job(sequence))
            pair.now_ns += idle_ns
        pair.foreground.admitted(job(200))
        pair.foreground.begins(run_of(job(200), profile), pair.now_ns)
        held.append(pair.background.holds(LAZY, pair.now_ns))
        pair.foreground.ended(job(200))
    assert held == [False, True]


def test_a_run_beside_which_a_layer_began_is_not_one_alone() -> None:
    pair, profile = Pair("shared"), Learning()
    one = job(1)
    pair.foreground.admitted(one)
    run = run_of(one, profile)
    pair.foreground.begins(run, 0)
    pair.foreground.finished(run, 100)
    assert profile.learnt == [(100, False, 2)]
    pair.foreground.begins(run, 0)
    pair.background.holds(LAZY, 10)
    pair.background.pauses()
    pair.foreground.finished(run, 100)
    assert profile.learnt == [(100, False, 2), (100, True, 2)]


def test_a_layer_that_outlasts_the_run_counts_as_beside_it() -> None:
    pair, profile = Pair("preemptive"), Learning()
    pair.background.holds(LAZY, 0)
    one = job(1)
    pair.foreground.admitted(one)
    run = run_of(one, profile)
    pair.foreground.begins(run, 5)
    pair.foreground.finished(run, 100)
    assert profile.learnt == [(100, True, 2)]


def test_the_first_runs_of_a_model_are_trials_by_which_its_slowdown_is_known() -> None:
    pair, profile = Pair("padded"), RunProfile()
    held = []
    while profile.slowdown is None and len(held) < 100:
        number = len(held)
        one = job(number)
        pair.foreground.admitted(one)
        run = run_of(one, profile)
        pair.foreground.begins(run, 0)
        held.append(pair.background.holds(LAZY, 10))
        pair.background.pauses()
        pair.foreground.finished(run, 100)
        pair.foreground.ended(one)
    assert held == [True, True, True, False] * (FIRST_PAIRS // 2) + [True, True, True, False]
    assert profile.slowdown == pytest.approx(1.0)
    assert pair.gate.realtime().trial is PaddingTrial.NONE


def test_only_layers_with_the_processors_to_themselves_tell_what_they_take() -> None:
    pair, profile = Pair("shared"), RunProfile()
    profile.learn_layers([100])
    run = run_of(job(99, JobClass.BESTEFFORT), profile)
    pair.background.holds(run, 0)
    pair.foreground.admitted(job(1))
    pair.background.layer_done(run, 9_000)
    pair.background.finished(run, 9_000)
    assert profile.layer_ns(0) == 100


def test_a_real_time_request_that_must_be_late_is_refused_with_a_hint() -> None:
    pair = Pair("padded")
    profile = pair.profiles.find(("model", ()))
    profile.learn_run(10_000_000, beside=False)
    first = job(1, deadline_ns=10_000_000)
    pair.foreground.check(first)
    pair.foreground.admitted(first)
    with pytest.raises(UnavailableError, match="retry in 5 ms"):
        pair.foreground.check(job(2, deadline_ns=15_000_000))
    pair.foreground.check(job(2, deadline_ns=9_000_000 + 11_000_000))
    pair.foreground.check(job(2, JobClass.NORMAL, deadline_ns=1))
    first.state = JobState.RUNNING
    pair.foreground.begins(run_of(first, profile), 0)
    with pytest.raises(UnavailableError, match="retry in 5 ms"):
        pair.foreground.check(job(3, deadline_ns=15_000_000))


def test_a_minimum_share_opens_the_gate_now_and_then() -> None:
    pair = Pair("preemptive", Limits(slowdown=1.05, share=0.2))
    pair.foreground.admitted(job(1))
    ran = held = 0
    for now_ns in range(0, 200_000_000, 1_000_000):
        if pair.background.holds(LAZY, now_ns):
            held += 1
        else:
            ran += 1
    assert 0.15 < ran / (ran + held) < 0.25
