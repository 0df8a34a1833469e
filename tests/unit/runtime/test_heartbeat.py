"""Whether a worker still moves, in a supervisor's virtual time."""

from __future__ import annotations

from dataclasses import dataclass

from brisk.runtime.heartbeat import Heartbeat, StallWatch


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


def watched() -> tuple[Clock, Heartbeat, StallWatch]:
    clock, heartbeat = Clock(), Heartbeat()
    return clock, heartbeat, StallWatch(heartbeat, 10.0, clock)


def seconds_until_stalled(clock: Clock, watch: StallWatch, *, is_awaited: bool = False) -> int:
    for second in range(100):
        if watch.has_stalled(is_awaited=is_awaited):
            return second
        clock.now_s += 1
    raise AssertionError("it has not stalled in 100 s")


def test_a_worker_with_peers_that_does_not_move_has_stalled_after_the_patience() -> None:
    clock, heartbeat, watch = watched()
    heartbeat.beat(1)
    assert seconds_until_stalled(clock, watch) == 10


def test_one_that_moves_has_not() -> None:
    clock, heartbeat, watch = watched()
    for _ in range(50):
        heartbeat.beat(1)
        assert not watch.has_stalled(is_awaited=False)
        clock.now_s += 1


def test_one_that_nobody_needs_may_rest() -> None:
    clock, heartbeat, watch = watched()
    heartbeat.beat(0)
    for _ in range(50):
        assert not watch.has_stalled(is_awaited=False)
        clock.now_s += 1
    assert seconds_until_stalled(clock, watch, is_awaited=True) == 9, "a second has passed"


def test_a_supervisor_that_was_stopped_itself_blames_nobody() -> None:
    clock, heartbeat, watch = watched()
    heartbeat.beat(1)
    assert not watch.has_stalled(is_awaited=False)
    clock.now_s += 3600
    assert not watch.has_stalled(is_awaited=False)
    assert seconds_until_stalled(clock, watch) == 10


def test_the_next_worker_is_not_blamed_for_the_one_before() -> None:
    clock, heartbeat, watch = watched()
    heartbeat.beat(1)
    assert seconds_until_stalled(clock, watch) == 10
    heartbeat.clear()
    assert not watch.has_stalled(is_awaited=False)


def test_a_worker_on_a_gpu_may_take_longer_until_its_first_beat() -> None:
    clock, heartbeat = Clock(), Heartbeat()
    watch = StallWatch(heartbeat, 10.0, clock, start_patience_s=60.0)
    for _ in range(20):
        assert not watch.has_stalled(is_awaited=True)
        clock.now_s += 1
    assert seconds_until_stalled(clock, watch, is_awaited=True) == 40
    heartbeat.clear()
    watch.begin()
    heartbeat.beat(1)
    assert seconds_until_stalled(clock, watch) == 10, "then it is as any other"


def test_the_worker_after_one_that_never_beat_is_not_blamed_for_it() -> None:
    clock, heartbeat, watch = watched()
    assert seconds_until_stalled(clock, watch, is_awaited=True) == 10
    heartbeat.clear()
    watch.begin()
    assert seconds_until_stalled(clock, watch, is_awaited=True) == 10
