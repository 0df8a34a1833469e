"""Latencies learned from runs."""

from __future__ import annotations

from hypothesis import given, strategies

from brisk.planning import HitRate, LatencyProfile
from brisk.planning.profile import MOST_SIGNATURES, QUANTILE, WINDOW


@given(strategies.lists(strategies.integers(0, 10**9), min_size=1, max_size=3 * WINDOW))
def test_a_profile_is_the_quantile_of_the_latest_runs(durations: list[int]) -> None:
    profile = LatencyProfile()
    for duration in durations:
        profile.learn("shape", 4, duration)
    latest = sorted(durations[-WINDOW:])
    assert (
        profile.expect_ns("shape", 4) == latest[min(len(latest) - 1, int(QUANTILE * len(latest)))]
    )


def test_a_first_measurement_is_forgotten_when_enough_others_have_come() -> None:
    profile = LatencyProfile()
    profile.learn("shape", 4, 10**9)
    for _ in range(10):
        profile.learn("shape", 4, 100)
    assert profile.expect_ns("shape", 4) == 100


def test_larger_inputs_are_guessed_in_proportion_to_the_nearest_ones() -> None:
    profile = LatencyProfile()
    assert profile.expect_ns("one", 100) is None
    profile.learn("one", 100, 1000)
    profile.learn("four", 400, 2000)
    assert profile.expect_ns("eight", 800) == 4000
    assert profile.expect_ns("half", 50) == 1000, "a smaller input is not promised to be faster"


def test_kinds_of_input_are_bounded_and_the_one_unseen_for_longest_goes() -> None:
    profile = LatencyProfile()
    for kind in range(MOST_SIGNATURES):
        profile.learn(kind, 10, kind)
    profile.learn(0, 10, 0)
    profile.learn("new", 10, 7)
    assert profile.expect_ns("new", 10) == 7
    assert profile.expect_ns(0, 10) == 0
    assert profile.expect_ns(2, 10) == 2


def test_a_hit_rate_is_that_of_the_latest_attempts() -> None:
    rate = HitRate()
    assert rate.share == 0
    for attempt in range(3 * WINDOW):
        rate.learn(attempt >= 2 * WINDOW)
    assert rate.share == 1
