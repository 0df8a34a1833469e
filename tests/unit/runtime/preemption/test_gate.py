"""The gate and the workers' halves of a policy, stepped through by hand in virtual time."""

from __future__ import annotations

from collections import Counter

import pytest

from brisk.errors import UnavailableError
from brisk.runtime.requests.batch import Run
from brisk.runtime.requests.table import ProfileKey, Request
from brisk.scheduling.job import JobState
from brisk.scheduling.job_class import JobClass
from brisk.scheduling.policies import Limits
from brisk.scheduling.times import RunProfile
from brisk.telemetry import STATISTICS, metrics
from support.runtime.gates import LAZY, Pair, job, run_of


def closed() -> int:
    """How often gates of this process were closed."""
    samples = STATISTICS.samples()
    return sum(each.values[0] for each in samples if each.metric == metrics.GATE_CLOSURES.name)


def test_a_segment_is_held_from_the_arrival_of_real_time_work_to_its_answer() -> None:
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
    assert not pair.rings(), "no segment was held"


def test_a_job_that_was_never_admitted_opens_nothing() -> None:
    pair = Pair("preemptive")
    pair.foreground.admitted(job(1))
    pair.foreground.ended(job(2))
    assert not pair.gate.is_open


def test_the_background_learns_what_the_foreground_expects() -> None:
    pair, profile = Pair("deadline"), RunProfile()
    profile.learn(1_000)
    one = job(1, deadline_ns=9_000)
    pair.foreground.admitted(one)
    pair.foreground.begins(run_of(one, profile), 500)
    realtime = pair.gate.realtime()
    assert (realtime.count, realtime.end_ns, realtime.deadline_ns) == (1, 1_500, 9_000)
    pair.foreground.ended(one)
    assert pair.gate.realtime().end_ns is None


def test_a_best_effort_run_takes_what_its_segments_do_and_not_how_long_they_were_held() -> None:
    pair, profile = Pair("preemptive"), RunProfile()
    run = run_of(job(99, JobClass.BESTEFFORT), profile)
    run.computed_ns = 100
    pair.background.finished(run, 9_000)
    assert profile.run_ns == 100


def test_a_real_time_request_that_must_be_late_is_refused_with_a_hint() -> None:
    pair = Pair("preemptive")
    profile = pair.profiles.find(("model", ()))
    profile.learn(10_000_000)
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


def test_those_that_are_due_before_it_are_in_its_way_until_they_have_ended() -> None:
    pair, ms = Pair("preemptive"), 1_000_000
    pair.profiles.find(("model", ())).learn(10 * ms)
    due_ms = {1: 11, 2: 48, 3: 31, 4: 21}
    waiting = [job(number, deadline_ns=each * ms) for number, each in due_ms.items()]
    for one in waiting:
        pair.foreground.admitted(one)
    for fits_ms in (20, 30, 40, 50):
        pair.foreground.check(job(9, deadline_ns=fits_ms * ms))
    for fails_ms in (19, 29, 39, 49):
        with pytest.raises(UnavailableError, match=f"expected to be free in {fails_ms - 9}"):
            pair.foreground.check(job(9, deadline_ns=fails_ms * ms))
    assert pair.gate.realtime().deadline_ns == 11 * ms
    for one in waiting[:3]:
        pair.foreground.ended(one)
        assert pair.gate.realtime().deadline_ns == 21 * ms
        pair.foreground.check(job(9, deadline_ns=49 * ms))
    pair.foreground.ended(waiting[3])
    assert pair.gate.is_open


def test_a_check_asks_nothing_of_each_request_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand that wait would take two milliseconds of the worker's for each that comes."""
    pair, asked = Pair("preemptive"), Counter[int]()
    key = Request.profile_key

    def noted(one: Request) -> ProfileKey:
        asked[one.number] += 1
        return key.__get__(one)

    monkeypatch.setattr(Request, "profile_key", property(noted))
    for number in range(100):
        one = job(number, deadline_ns=10**12 + number)
        pair.foreground.check(one)
        pair.foreground.admitted(one)
    assert set(asked.values()) == {2}


def computing(pair: Pair, deadline_ns: int | None = None) -> Run:
    """A real-time run that begins at 0 and takes 10 ms, as all of its model do."""
    profile = pair.profiles.find(("model", ()))
    profile.learn(10_000_000)
    one = job(1, deadline_ns=deadline_ns)
    pair.foreground.admitted(one)
    one.state = JobState.RUNNING
    run = run_of(one, profile)
    pair.foreground.begins(run, 0)
    return run


@pytest.mark.parametrize("policy", ["deadline", "preemptive"])
def test_a_request_that_interrupts_the_run_is_not_refused_because_of_it(policy: str) -> None:
    pair = Pair(policy)
    computing(pair, deadline_ns=16_000_000)
    with pytest.raises(UnavailableError, match="expected to be free in 10"):
        pair.foreground.check(job(2, deadline_ns=17_000_000))
    if policy == "deadline":
        pair.foreground.check(job(2, deadline_ns=15_000_000))


def test_of_a_run_that_goes_on_only_what_is_left_is_in_the_way() -> None:
    pair = Pair("deadline")
    run = computing(pair, deadline_ns=16_000_000)
    run.computed_ns = 9_000_000
    pair.foreground.begins(run, 4_000_000)
    assert pair.gate.realtime().end_ns == 5_000_000
    pair.foreground.check(job(2, deadline_ns=17_000_000))


def test_a_run_that_ended_early_is_in_nobody_s_way() -> None:
    """As one that learned caches have answered, or that was cancelled, while others wait."""
    pair = Pair("preemptive")
    run = computing(pair)
    pair.foreground.admitted(job(2))
    pair.foreground.ended(run.jobs[0])
    pair.foreground.pauses()
    pair.foreground.check(job(3, deadline_ns=11_000_000))


def refusals(pair: Pair, deadline_ns: int, most: int = 1_000) -> int:
    """How many requests with this time-out are refused before one is let in."""
    for number in range(most):
        one = job(number, deadline_ns=deadline_ns)
        try:
            pair.foreground.check(one)
        except UnavailableError:
            continue
        pair.foreground.admitted(one)
        pair.foreground.ended(one)
        return number
    raise AssertionError(f"{most} requests were refused")


def test_a_duration_that_refuses_every_request_is_measured_again_in_time() -> None:
    pair = Pair("preemptive")
    profile = pair.profiles.find(("model", ()))
    for _ in range(8):
        profile.learn(6_000_000)
    with pytest.raises(UnavailableError, match=r"the request alone takes 6\.0 ms"):
        pair.foreground.check(job(1, deadline_ns=5_000_000))
    with pytest.raises(UnavailableError, match=r"the request alone takes 6\.0 ms"):
        pair.foreground.check(job(1, deadline_ns=5_000_000))
    assert 1 < refusals(pair, 5_000_000) < 50
    assert 1 < refusals(pair, 5_000_000) < 50, "the one let in has measured nothing"
    profile.learn(6_000_000)
    assert 1 < refusals(pair, 5_000_000) < 50, "it was rightly refused"
    assert refusals(pair, 3_000_000) < 100
    profile.learn(2_000_000)
    assert refusals(pair, 3_000_000) == 0, "it was wrongly refused"


def test_a_hope_that_others_are_in_the_way_of_is_not_spent() -> None:
    pair = Pair("preemptive")
    profile = pair.profiles.find(("model", ()))
    profile.learn(6_000_000)
    other = job(1_001)
    pair.foreground.admitted(other)
    other.state = JobState.RUNNING
    pair.foreground.begins(run_of(other, profile), 0)
    for number in range(40):
        with pytest.raises(UnavailableError):
            pair.foreground.check(job(number, deadline_ns=5_000_000))
    pair.foreground.ended(other)
    pair.foreground.pauses()
    assert profile.run_ns == 6_000_000
    assert refusals(pair, 5_000_000) == 0, "the device is free"


def test_a_segment_that_is_aside_runs_while_others_pause_or_are_held() -> None:
    pair = Pair("preemptive")
    page = pair.gate.page
    assert not pair.background.holds(LAZY, 0)
    pair.background.counts_aside(1)
    pair.background.pauses()
    assert page.segment_runs, "a real-time run that begins now suspends it"
    pair.foreground.admitted(job(1))
    assert pair.background.holds(LAZY, 1)
    assert (page.segment_runs, page.is_held) == (1, 1)
    pair.background.counts_aside(0)
    assert pair.background.holds(LAZY, 2)
    assert not page.segment_runs
    pair.background.pauses()
    assert not page.segment_runs


def test_a_minimum_share_opens_the_gate_now_and_then() -> None:
    pair = Pair("preemptive", Limits(share=0.2))
    pair.foreground.admitted(job(1))
    ran = held = 0
    for now_ns in range(0, 200_000_000, 1_000_000):
        if pair.background.holds(LAZY, now_ns):
            held += 1
        else:
            ran += 1
    assert 0.15 < ran / (ran + held) < 0.25
