"""Latencies learned from runs."""

from __future__ import annotations

from hypothesis import given, strategies

from brisk.runtime.pipelines.latency import FEW, MOST_SHAPES, QUANTILE, WINDOW, LatencyProfile

SHAPES = ((1, 4),)


@given(strategies.lists(strategies.integers(0, 10**9), min_size=1, max_size=3 * WINDOW))
def test_a_profile_is_the_quantile_of_the_latest_runs(durations: list[int]) -> None:
    profile = LatencyProfile()
    for duration in durations:
        profile.learn(SHAPES, duration)
    latest = sorted(durations[-WINDOW:])
    count = len(latest)
    place = (count - 1) // 2 if count < FEW else min(count - 1, int(QUANTILE * count))
    assert profile.expect_ns(SHAPES) == latest[place]


def test_a_first_measurement_is_forgotten_when_enough_others_have_come() -> None:
    profile = LatencyProfile()
    profile.learn(SHAPES, 10**9)
    for _ in range(10):
        profile.learn(SHAPES, 100)
    assert profile.expect_ns(SHAPES) == 100


def test_larger_inputs_are_guessed_in_proportion_to_the_nearest_ones() -> None:
    profile = LatencyProfile()
    assert profile.expect_ns(((1, 100),)) is None
    profile.learn(((1, 100),), 1000)
    profile.learn(((4, 100),), 2000)
    assert profile.expect_ns(((8, 100),)) == 4000
    assert profile.expect_ns(((50,),)) == 1000, "a smaller input is not promised to be faster"


def test_kinds_of_input_are_bounded_and_the_one_unseen_for_longest_goes() -> None:
    profile = LatencyProfile()
    for kind in range(MOST_SHAPES):
        profile.learn(((kind, 0),), kind)
    profile.learn(((0, 0),), 0)
    profile.learn(((0, 1),), 7)
    assert profile.expect_ns(((0, 1),)) == 7
    assert profile.expect_ns(((0, 0),)) == 0
    assert profile.expect_ns(((2, 0),)) == 2


def test_the_median_stands_for_few_runs() -> None:
    profile = LatencyProfile()
    for duration in (100, 10**9, 110):
        profile.learn(SHAPES, duration)
    assert profile.expect_ns(SHAPES) == 110


def test_a_variant_that_is_thought_too_slow_is_tried_again_in_time() -> None:
    """Measured beside other work at first: 300 where it takes 100, with 200 to spend."""
    slow, other = LatencyProfile(), LatencyProfile()
    slow.learn(SHAPES, 300)
    other.learn(SHAPES, 150)
    requests = 0
    while (slow.expect_ns(SHAPES) or 0) > 200:
        other.learn(SHAPES, 150)
        slow.pass_by(SHAPES)
        requests += 1
    assert 50 < requests < 500
    slow.learn(SHAPES, 100)
    assert slow.expect_ns(SHAPES) == 100, "what is measured now is believed"


def test_one_that_is_too_slow_indeed_costs_a_request_now_and_then() -> None:
    slow, tried, requests = LatencyProfile(), 0, 5000
    slow.learn(SHAPES, 400)
    for _ in range(requests):
        if (slow.expect_ns(SHAPES) or 0) <= 200:
            slow.learn(SHAPES, 400)
            tried += 1
        else:
            slow.pass_by(SHAPES)
    assert 1 <= tried <= requests / 100


def test_a_variant_that_runs_all_the_time_is_not_hoped_for() -> None:
    profile = LatencyProfile()
    for _ in range(100):
        profile.learn(SHAPES, 100)
    profile.pass_by(SHAPES)
    assert profile.expect_ns(SHAPES) == 99
    profile.learn(SHAPES, 300)
    assert profile.expect_ns(SHAPES) == 100, "one slow run of a hundred"


def test_shapes_that_a_variant_never_had_are_tried_in_time() -> None:
    """Tried with one row: four are guessed at 36 where they take 15, with 20 to spend."""
    large = LatencyProfile()
    large.learn(((1, 4),), 9000)
    assert large.expect_ns(((4, 4),)) == 36_000
    for _ in range(150):
        large.pass_by(((4, 4),))
    assert (large.expect_ns(((4, 4),)) or 0) < 20_000
    assert large.expect_ns(((1, 4),)) == 9000, "other sizes are expected as before"
    large.learn(((4, 4),), 15_000)
    assert large.expect_ns(((4, 4),)) == 15_000


def test_of_shapes_that_differ_each_time_one_is_tried_in_time_too() -> None:
    large = LatencyProfile()
    large.learn(((1, 100),), 9000)
    for length in range(2 * MOST_SHAPES):
        large.pass_by(((4, 70 + length % 57),))
    assert (large.expect_ns(((4, 127),)) or 0) < 9000 * 5 * 0.6
    large.learn(((4, 126),), 40_000)
    assert (large.expect_ns(((4, 127),)) or 0) > 40_000, "what is measured now is believed"


def test_what_never_ran_has_no_expected_time_however_often_others_ran() -> None:
    profile = LatencyProfile()
    profile.pass_by(SHAPES)
    assert profile.expect_ns(SHAPES) is None
