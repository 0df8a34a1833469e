"""When a worker waits with open eyes, and when it sleeps at once; in virtual time."""

from __future__ import annotations

import pytest

from brisk.runtime.peers.connections import SPIN_NS, Anticipation

pytestmark = pytest.mark.timing

LOOK_NS = 1_000


class Events:
    """Finds ``[1]`` once its clock has passed the next event; a look takes LOOK_NS."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.due_ns = 0
        self.waits: list[float] = []

    def clock_ns(self) -> int:
        return self.now_ns

    def look(self, timeout_s: float) -> list[int]:
        self.waits.append(timeout_s)
        self.now_ns += LOOK_NS
        if timeout_s:
            self.now_ns = max(self.now_ns, min(self.due_ns, self.now_ns + int(timeout_s * 1e9)))
        return [1] if self.now_ns >= self.due_ns else []


def waits_for(gaps_ns: list[int]) -> Events:
    events = Events()
    anticipation = Anticipation(events.clock_ns)
    for gap_ns in gaps_ns:
        events.waits.clear()
        events.due_ns = events.now_ns + gap_ns
        assert anticipation.wait(events.look, 1.0) == [1]
    return events


def test_at_first_it_sleeps_at_once() -> None:
    events = waits_for([20_000])
    assert events.waits == [1.0]


def test_after_quick_records_it_looks_without_sleeping() -> None:
    events = waits_for([20_000] * 10)
    assert set(events.waits) == {0}


def test_after_slow_records_it_sleeps_at_once_again() -> None:
    events = waits_for([20_000] * 10 + [5_000_000] * 3)
    assert events.waits == [1.0]


def test_it_spins_no_longer_than_its_bound_and_then_sleeps() -> None:
    events = waits_for([20_000] * 10 + [5_000_000])
    assert events.waits[-1] == 1.0
    spun = [wait for wait in events.waits if wait == 0]
    assert 0 < len(spun) * LOOK_NS <= SPIN_NS


def test_nothing_found_in_time_is_given_back_as_such() -> None:
    events = Events()
    events.due_ns = 10**12
    assert Anticipation(events.clock_ns).wait(events.look, 0.5) == []
