"""When a worker waits with open eyes, and when it sleeps at once; in virtual time."""

from __future__ import annotations

from brisk.runtime.requests.busy_poll import ANNOUNCED_NS, SPIN_NS, Anticipation

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


def waits_for(gaps_ns: list[int]) -> tuple[Anticipation, Events]:
    events = Events()
    anticipation = Anticipation(events.clock_ns)
    for gap_ns in gaps_ns:
        events.waits.clear()
        events.due_ns = events.now_ns + gap_ns
        assert anticipation.wait(events.look, 1.0) == [1]
    return anticipation, events


def test_at_first_it_sleeps_at_once() -> None:
    _, events = waits_for([20_000])
    assert events.waits == [1.0]


def test_after_quick_records_it_looks_without_sleeping() -> None:
    _, events = waits_for([20_000] * 10)
    assert set(events.waits) == {0}


def test_after_slow_records_it_sleeps_at_once_again() -> None:
    anticipation, events = waits_for([20_000] * 10 + [5_000_000] * 3)
    assert not anticipation.is_eager
    assert events.waits == [1.0]


def test_it_spins_no_longer_than_its_bound_and_then_sleeps() -> None:
    _, events = waits_for([20_000] * 10 + [5_000_000])
    assert events.waits[-1] == 1.0
    spun = [wait for wait in events.waits if wait == 0]
    assert 0 < len(spun) * LOOK_NS <= SPIN_NS


def test_nothing_found_in_time_is_given_back_as_such() -> None:
    events = Events()
    events.due_ns = 10**12
    assert Anticipation(events.clock_ns).wait(events.look, 0.5) == []


def test_an_announced_record_is_awaited_without_sleeping_once() -> None:
    anticipation, events = waits_for([5_000_000] * 3)
    for waits in ({0}, {1.0}):
        if waits == {0}:
            anticipation.announce()
        events.waits.clear()
        events.due_ns = events.now_ns + ANNOUNCED_NS // 2
        assert anticipation.wait(events.look, 1.0) == [1]
        assert set(events.waits) == waits


def test_an_announced_record_that_does_not_come_is_awaited_no_longer_than_its_bound() -> None:
    anticipation, events = waits_for([5_000_000] * 3)
    anticipation.announce()
    begun_ns = events.now_ns
    events.waits.clear()
    events.due_ns = begun_ns + 10 * ANNOUNCED_NS
    assert anticipation.wait(events.look, 1.0) == [1]
    spun = [wait for wait in events.waits if wait == 0]
    assert 0 < len(spun) * LOOK_NS <= ANNOUNCED_NS
    assert events.waits[-1] == 1.0


def test_announcements_do_not_make_a_slow_client_a_quick_one() -> None:
    anticipation, events = waits_for([5_000_000] * 3)
    for _ in range(20):
        anticipation.announce()
        events.due_ns = events.now_ns + 10_000
        anticipation.wait(events.look, 1.0)
    assert not anticipation.is_eager


def test_on_a_single_processor_nothing_is_awaited_with_open_eyes_that_was_announced() -> None:
    events = Events()
    anticipation = Anticipation(events.clock_ns, processors=1)
    anticipation.announce()
    events.due_ns = 10_000
    anticipation.wait(events.look, 1.0)
    assert events.waits == [1.0]
