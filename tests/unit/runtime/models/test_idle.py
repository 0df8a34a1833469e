"""Work that nobody waits for, beside requests, in virtual time."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from brisk.runtime.models.yielding import CALM_S, LONGEST_WAIT_S, REST, Yielding
from brisk.runtime.requests.batch import RunsInProgress
from support.runtime.gates import LAZY


class Day:
    """A clock whose sleeps do what happens meanwhile: ``events`` by their times."""

    def __init__(self, events: dict[float, Callable[[Day], None]]) -> None:
        self.now_s = 100.0
        self.looks = 0
        self._events = sorted(events.items())
        self.runs = RunsInProgress()
        self.idle = Yielding(self.runs, lambda: self.now_s, self._sleep)

    def _sleep(self, duration_s: float) -> None:
        self.looks += 1
        self.now_s += duration_s
        while self._events and self._events[0][0] <= self.now_s - 100.0:
            self._events.pop(0)[1](self)

    def calm(self) -> None:
        self.idle.await_calm(self.now_s + LONGEST_WAIT_S)

    def gap(self) -> None:
        self.idle.pause(LONGEST_WAIT_S)

    def passed_s(self, wait: Callable[[], None]) -> float:
        before_s = self.now_s
        wait()
        return self.now_s - before_s


def begins(day: Day) -> None:
    day.runs.leading[:] = [LAZY]


def ends(day: Day) -> None:
    day.runs.ended_ns = math.ceil(day.now_s * 1e9)
    day.runs.leading.clear()


def test_nothing_is_waited_for_where_nobody_asks() -> None:
    day = Day({})
    assert day.passed_s(day.gap) == 0.0
    assert day.passed_s(day.calm) == 0.0


def test_a_gap_is_the_end_of_what_runs_and_calm_comes_later() -> None:
    day = Day({0.1: ends})
    begins(day)
    assert 0.1 <= day.passed_s(day.gap) < 0.11
    assert CALM_S <= day.passed_s(day.calm) < 3 * CALM_S


def test_requests_that_follow_each_other_leave_gaps_but_no_calm() -> None:
    events: dict[float, Callable[[Day], None]] = {}
    for number in range(5):
        events[0.04 * number] = begins
        events[0.04 * number + 0.03] = ends
    day = Day(events)
    begins(day)
    assert day.passed_s(day.gap) < 0.035
    begins(day)
    last_s = 100.0 + 0.04 * 4 + 0.03
    day.calm()
    assert last_s + CALM_S <= day.now_s < last_s + 3 * CALM_S


def test_a_run_within_one_stretch_counts_too() -> None:
    day = Day({})
    begins(day)
    ends(day)
    assert day.passed_s(day.calm) >= CALM_S


def test_after_a_load_a_request_is_expected_for_a_while() -> None:
    day = Day({})
    until_s = day.idle.expect()
    assert day.passed_s(functools.partial(day.idle.await_calm, until_s)) >= CALM_S
    assert day.passed_s(day.gap) == 0.0
    begins(day)
    day.idle.await_calm(until_s)
    assert until_s <= day.now_s < until_s + CALM_S
    assert day.passed_s(functools.partial(day.idle.await_calm, until_s)) == 0.0


def test_no_work_waits_for_ever_and_waiting_for_calm_looks_seldom() -> None:
    day = Day({})
    begins(day)
    assert LONGEST_WAIT_S <= day.passed_s(day.gap) < LONGEST_WAIT_S + 0.01
    looks = day.looks
    assert LONGEST_WAIT_S <= day.passed_s(day.calm) < LONGEST_WAIT_S + 2 * CALM_S
    assert day.looks - looks <= LONGEST_WAIT_S / CALM_S + 1


def test_behind_work_that_nobody_waits_for_requests_are_left_alone_for_several_times_as_long() -> (
    None
):
    day = Day({})
    rest = functools.partial(day.idle.rest, 0.2, 10.0)
    assert day.passed_s(rest) == 0.0, "nobody is there"
    begins(day)
    assert REST * 0.2 <= day.passed_s(rest) < REST * 0.2 + 2 * CALM_S
    assert 0.5 <= day.passed_s(functools.partial(day.idle.rest, 60.0, 0.5)) < 0.5 + 2 * CALM_S
