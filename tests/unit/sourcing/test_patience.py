"""The patience with sources, their rates, and which of two comes sooner."""

from __future__ import annotations

import math

import pytest

from brisk.sourcing.policies.patience import (
    FIRST_BYTE_S,
    LATE_FACTOR,
    LATE_S,
    NEXT_BYTE_S,
    PEER_SILENCE_S,
    SLOW_S,
    RateMeter,
    Waited,
    is_late,
    is_silent,
    is_slow,
    pause_s,
)
from brisk.sourcing.policies.worth import (
    RAW_START_S,
    UNKNOWN_BYTES_PER_S,
    expected_bytes_per_s,
    is_form_sooner,
)

MB = 1_000_000


@pytest.mark.parametrize(
    ("is_peer", "heard_s", "patience_s"),
    [
        (True, None, PEER_SILENCE_S),
        (False, None, FIRST_BYTE_S),
        (True, 107.0, 7.0 + PEER_SILENCE_S),
        (False, 107.0, 7.0 + NEXT_BYTE_S),
    ],
)
def test_a_source_is_silent_when_its_time_is_over(
    is_peer: bool, heard_s: float | None, patience_s: float
) -> None:
    waited = Waited(is_peer, 100.0, heard_s, 0.0, 0.0, 0.0)
    assert not is_silent(waited, 100.0)
    assert not is_silent(waited, 100.0 + patience_s - 0.001)
    assert is_silent(waited, 100.0 + patience_s + 0.001)


def test_a_registry_gets_longer_than_a_peer_that_answers_at_once() -> None:
    assert PEER_SILENCE_S < NEXT_BYTE_S < FIRST_BYTE_S


def slow(bytes_per_s: float, busy_s: float, expected: float) -> bool:
    return is_slow(Waited(False, 0.0, 5.0, bytes_per_s, busy_s, expected))


def test_a_source_is_slow_below_half_of_what_was_expected_for_some_time() -> None:
    assert slow(49.0, SLOW_S, 100.0)
    assert not slow(50.0, SLOW_S, 100.0)
    assert not slow(0.0, SLOW_S - 0.01, 100.0)
    assert slow(0.0, SLOW_S, 100.0)


def test_a_source_of_which_nothing_is_expected_is_never_slow() -> None:
    assert not slow(0.0, 1000.0, 0.0)


@pytest.mark.parametrize(
    ("other_bytes_per_s", "patience_s"),
    [(100 * MB, LATE_S), (0.1 * MB, LATE_FACTOR * 10.0), (0.0, math.inf)],
)
def test_a_chunk_is_late_by_what_another_source_would_take_for_it(
    other_bytes_per_s: float, patience_s: float
) -> None:
    waited_s = min(patience_s, 1e9)
    assert not is_late(waited_s - 0.001, MB, other_bytes_per_s)
    assert is_late(waited_s + 0.001, MB, other_bytes_per_s) is (patience_s < math.inf)


def test_pauses_double_from_a_tenth_of_a_second_to_five() -> None:
    expected = [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert [pause_s(failures) for failures in range(10)] == pytest.approx(expected)
    assert pause_s(10**9) == 5.0


@pytest.mark.parametrize("step_s", [0.001, 0.01, 0.049, 0.2])
def test_a_steady_rate_is_measured_whatever_its_pieces(step_s: float) -> None:
    meter = RateMeter()
    meter.start(50.0)
    now_s = 50.0
    while now_s < 53.0:
        now_s += step_s
        meter.add(round(10 * MB * step_s), now_s)
    assert meter.rate(now_s) == pytest.approx(10 * MB, rel=0.21)
    assert meter.total == pytest.approx(30 * MB, rel=0.1)


def test_what_came_before_the_window_does_not_count() -> None:
    meter = RateMeter(2.0)
    meter.add(MB, 10.0)
    meter.add(MB, 11.5)
    assert meter.rate(11.9) == pytest.approx(2 * MB / 1.9)
    assert meter.rate(12.5) == pytest.approx(MB / 2.0)
    assert meter.rate(13.6) == 0.0
    assert meter.total == 2 * MB


def test_nothing_yet_is_no_rate() -> None:
    meter = RateMeter()
    assert meter.rate(5.0) == 0.0
    meter.start(5.0)
    assert meter.rate(7.0) == 0.0


def test_the_first_piece_is_not_divided_by_no_time() -> None:
    meter = RateMeter()
    meter.add(1000, 5.0)
    assert meter.rate(5.0) == pytest.approx(1000 / 0.05)


def test_a_pause_between_two_requests_is_not_measured() -> None:
    meter = RateMeter()
    meter.add(MB, 10.0)
    meter.start(20.0)
    assert meter.rate(20.0) == 0.0
    meter.add(MB, 20.5)
    assert meter.rate(20.5) == pytest.approx(2 * MB)
    assert meter.total == 2 * MB


def test_a_window_that_was_empty_in_between_counts_with_its_whole_length() -> None:
    meter = RateMeter()
    meter.add(MB, 10.0)
    assert meter.rate(15.0) == 0.0
    meter.add(MB, 15.0)
    assert meter.rate(15.0) == pytest.approx(MB)


@pytest.mark.parametrize(
    ("form_mb", "raw_mb", "mb_per_s", "is_sooner"),
    [
        (118, 102, 10_000, True),  # 1.6 ms more of bytes, 50 ms less of a start
        (118, 102, 125, False),  # 128 ms more
        (118, 102, 330, True),  # 48 ms more
        (118, 102, 310, False),  # 52 ms more
        (100, 100, 1, True),
        (0, 100, 1, True),  # it is here already
        (100, 0, 1, False),
        (0, 0, 1, True),
    ],
)
def test_a_form_is_sooner_where_its_bytes_take_less_than_it_spares(
    form_mb: int, raw_mb: int, mb_per_s: int, is_sooner: bool
) -> None:
    assert is_form_sooner(form_mb * MB, raw_mb * MB, mb_per_s * MB) is is_sooner


def test_at_the_very_border_the_models_own_file_is_taken() -> None:
    rate = 1024.0
    assert not is_form_sooner(int(rate), int(rate) - round(RAW_START_S * rate) - 1, rate)
    assert is_form_sooner(int(rate), int(rate) - round(RAW_START_S * rate) + 1, rate)


def test_speed_is_expected_as_measured_else_as_ever_else_as_of_anybody() -> None:
    assert expected_bytes_per_s(3.0, 9.0) == 3.0
    assert expected_bytes_per_s(0.0, 9.0) == 9.0
    assert expected_bytes_per_s(0.0, 0.0) == UNKNOWN_BYTES_PER_S
