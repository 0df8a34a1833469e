"""A tail is told of enough answers only, and no check passes for want of them."""

from __future__ import annotations

import pytest

from brisk_bench.harness.report import check_tail_ratio
from brisk_bench.harness.tails import (
    CURVE,
    curve,
    least_answers,
    quantile,
    shortage,
    tail,
    tail_or_shortage,
    tail_ratio,
)

ENOUGH = [float(value) for value in range(1000, 0, -1)]


def test_a_tail_takes_ten_answers_beyond_it() -> None:
    assert [least_answers(share) for share in (0.5, 0.9, 0.99, 0.999)] == [1, 1, 1000, 10_000]
    assert least_answers(1.0) == 1, "the greatest is no estimate"


@pytest.mark.parametrize(("share", "count"), [(0.99, 999), (0.999, 9999), (0.99, 0)])
def test_one_answer_too_few_is_no_tail(share: float, count: int) -> None:
    assert tail([1.0] * count, share) is None
    assert tail([1.0] * (count + 1), share) == (None if count == 0 else 1.0)


def test_what_is_lacking_is_told_in_numbers() -> None:
    assert shortage(200, 0.99) == "too few answers (200 of 1,000)"
    assert tail_or_shortage([1.0] * 9999, 0.999) == "too few answers (9,999 of 10,000)"
    assert shortage(1000, 0.99) == ""


def test_percentiles_are_by_nearest_rank() -> None:
    assert tail(ENOUGH, 0.99) == 990.0
    assert quantile(ENOUGH, 0.5) == 500.0
    assert tail_or_shortage(ENOUGH, 0.99, 1e3) == 990_000.0


def test_nobody_takes_a_tail_without_counting() -> None:
    with pytest.raises(ValueError, match=r"0\.99 is a tail"):
        quantile(ENOUGH, 0.99)


def test_a_ratio_of_tails_lacks_what_its_shorter_side_lacks() -> None:
    assert tail_ratio([value * 2 for value in ENOUGH], ENOUGH, 0.99) == 2.0
    assert tail_ratio(ENOUGH, ENOUGH[:300], 0.99) == "too few answers (300 of 1,000)"


def test_a_check_of_too_few_answers_does_not_hold_and_says_why() -> None:
    kept = check_tail_ratio("p99", ENOUGH, ENOUGH, 0.99, 1.1)
    assert (kept.ok, kept.value) == (True, 1.0)
    assert not check_tail_ratio("p99", [value * 2 for value in ENOUGH], ENOUGH, 0.99, 1.1).ok
    lacking = check_tail_ratio("p99", ENOUGH[:10], ENOUGH, 0.99, 1.1)
    assert (lacking.ok, lacking.value) == (False, "too few answers (10 of 1,000)")


def test_a_curve_ends_where_the_answers_are_too_few_for_its_next_point() -> None:
    assert curve(ENOUGH) == [1.0, *(10.0 * percent for percent in range(1, 100))]
    assert len(curve(ENOUGH[1:])) == 99, "999 have no p99"
    assert len(curve(ENOUGH * 10)) == len(CURVE)
    assert curve([1.23456]) == [1.235] * 99
    assert curve([]) == []
