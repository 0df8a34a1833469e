"""The minimum share of work that others go before, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from statistics import quantiles

import pytest

from brisk.scheduling.job import Job
from brisk.scheduling.job_class import JobClass
from brisk.scheduling.policies import POLICIES
from brisk.scheduling.times import PATIENCE_NS, Demand, MinimumShare

MS = 1_000_000
SHARE = 0.05


@dataclass
class Outcome:
    """The times of a simulated worker."""

    normal_ns: int
    whole_ns: int
    first_ns: int | None
    waits_ns: list[int]
    """The urgent runs' waits, from when they could begin."""

    @property
    def share(self) -> float:
        return self.normal_ns / self.whole_ns


def simulate(
    share: float,
    *,
    seconds: int,
    run_ns: int = 20 * MS,
    pause_ns: int = 0,
    load: float | None = None,
    segment_ns: int = MS,
    answer_gap_ns: int = 0,
    seed: int = 0,
) -> Outcome:
    """A worker with one urgent run after the other, and a normal client that always asks.

    ``pause_ns``: from the end of an urgent run to the next one's arrival; ``load``: instead of
    this, they come at random and need that part of the time. Normal work computes segment by
    segment, and gives way after each unless it is owed more. Where there is an answer gap, a
    request has 10 segments, and the client asks anew so long after its answer; else requests
    always wait.
    """
    meter, chance = MinimumShare(share), Random(seed)
    now_ns, end_ns = 0, seconds * 1_000_000_000
    normal_ns, first_ns, segments, asks_ns = 0, None, 0, 0
    due_ns, waits_ns = 0, []
    while now_ns < end_ns:
        there = asks_ns <= now_ns
        is_due = due_ns <= now_ns
        if is_due and not (there and meter.is_owed(now_ns)):
            waits_ns.append(now_ns - due_ns)
            meter.change(Demand.HELD if there else Demand.NONE, now_ns)
            now_ns += run_ns
            if load is None:
                due_ns = now_ns + pause_ns
            else:
                due_ns += int(chance.expovariate(load / run_ns))
        elif there:
            meter.change(Demand.CONTESTED if is_due else Demand.FREE, now_ns)
            now_ns += segment_ns
            normal_ns += segment_ns
            first_ns = now_ns if first_ns is None else first_ns
            segments += 1
            if segments % 10 == 0 and answer_gap_ns:
                asks_ns = now_ns + answer_gap_ns
                meter.change(Demand.NONE, now_ns)
        else:
            meter.change(Demand.NONE, now_ns)
            now_ns = min(asks_ns, due_ns)
    return Outcome(normal_ns, now_ns, first_ns, waits_ns)


def test_without_a_share_urgent_work_that_never_ends_leaves_nothing() -> None:
    assert simulate(0.0, seconds=60).normal_ns == 0


@pytest.mark.parametrize("run_ns", [MS, 20 * MS, 300 * MS])
@pytest.mark.parametrize("segment_ns", [MS // 5, 7 * MS, 200 * MS])
@pytest.mark.parametrize("share", [0.01, SHARE, 0.5])
def test_work_that_is_held_without_end_gets_its_share_and_no_more(
    share: float, segment_ns: int, run_ns: int
) -> None:
    outcome = simulate(share, seconds=200, run_ns=run_ns, segment_ns=segment_ns)
    assert outcome.first_ns is not None
    assert outcome.first_ns <= PATIENCE_NS + run_ns + segment_ns
    least_ns = share * (outcome.whole_ns - PATIENCE_NS - run_ns) - segment_ns
    assert outcome.normal_ns >= least_ns, f"{outcome.share} of the time"
    assert outcome.normal_ns <= share * outcome.whole_ns + segment_ns, (
        f"{outcome.share} of the time"
    )


def test_an_urgent_run_waits_for_no_more_than_what_one_run_took_from_the_share() -> None:
    outcome = simulate(SHARE, seconds=60)
    assert max(outcome.waits_ns) <= 2 * MS, "a twentieth of 20 ms, in whole segments of 1 ms"


def test_a_normal_client_that_is_slow_to_ask_again_does_not_lose_its_place() -> None:
    outcome = simulate(SHARE, seconds=200, answer_gap_ns=5 * MS)
    assert outcome.share >= 0.8 * SHARE


@pytest.mark.parametrize("load", [0.3, 0.5, 0.6])
@pytest.mark.parametrize("seed", range(5))
def test_urgent_work_that_leaves_two_fifths_of_the_time_never_waits(
    seed: int, load: float
) -> None:
    """Random arrivals: what one run waits for another, the share does not lengthen by anything."""
    with_share = simulate(SHARE, seconds=120, load=load, seed=seed)
    without = simulate(0.0, seconds=120, load=load, seed=seed)
    assert with_share.waits_ns == without.waits_ns


def test_urgent_work_of_seven_tenths_of_the_time_waits_no_longer_in_the_mean_and_at_p99() -> None:
    """Busy times of over two seconds are rare then."""
    with_share = simulate(SHARE, seconds=1500, load=0.7).waits_ns
    without = simulate(0.0, seconds=1500, load=0.7).waits_ns
    assert sum(with_share) / len(with_share) <= 1.01 * sum(without) / len(without)
    assert quantiles(with_share, n=100)[98] <= 1.01 * quantiles(without, n=100)[98]


def test_turns_that_it_had_nothing_to_do_in_are_not_taken_all_at_once_later() -> None:
    meter = MinimumShare(SHARE)
    now_ns = 0
    for _ in range(1000):  # a request of 0.2 ms, and runs of 20 ms between two of them
        meter.change(Demand.HELD, now_ns)
        now_ns += 20 * MS
        meter.change(Demand.CONTESTED, now_ns)
        now_ns += MS // 5
        meter.change(Demand.NONE, now_ns)
    meter.change(Demand.HELD, now_ns)
    meter.change(Demand.CONTESTED, now_ns)
    assert meter.is_owed(now_ns)
    assert not meter.is_owed(now_ns + int(SHARE * PATIENCE_NS / (1 - SHARE)) + MS)


def test_short_gaps_that_are_too_little_do_not_count_as_the_share() -> None:
    outcome = simulate(
        SHARE, seconds=200, pause_ns=MS // 5, segment_ns=MS // 5
    )  # one in a hundred
    assert outcome.share >= SHARE * (1 - 2 / 200)


def test_what_it_is_behind_is_forgotten_while_there_is_none() -> None:
    meter = MinimumShare(SHARE)
    meter.change(Demand.HELD, 0)
    assert not meter.is_owed(PATIENCE_NS - 1)
    assert meter.is_owed(PATIENCE_NS)
    meter.change(Demand.NONE, PATIENCE_NS)
    meter.change(Demand.HELD, 3 * PATIENCE_NS)
    assert not meter.is_owed(3 * PATIENCE_NS + PATIENCE_NS // 2)
    assert meter.is_owed(4 * PATIENCE_NS)


def test_what_it_ran_while_nobody_waited_is_no_debt() -> None:
    meter = MinimumShare(SHARE)
    meter.change(Demand.FREE, 0)
    meter.change(Demand.HELD, 1000 * PATIENCE_NS)
    assert meter.is_owed(1001 * PATIENCE_NS)


@pytest.mark.parametrize("name", POLICIES)
def test_normal_work_keeps_its_place_only_while_it_is_owed_a_turn(name: str) -> None:
    policy = POLICIES[name]
    urgent, normal, lazy = (Job(1, "m", each, 0, 5) for each in JobClass)
    assert not policy.takes_place(urgent, normal, normal_is_owed=True)
    for waiting, running in ((urgent, normal), (urgent, lazy), (normal, lazy)):
        expected = policy.interrupts(waiting, running)
        assert policy.takes_place(waiting, running, normal_is_owed=False) is expected
    for waiting in (urgent, normal):
        expected = policy.interrupts(waiting, lazy)
        assert policy.takes_place(waiting, lazy, normal_is_owed=True) is expected
