"""Growth of what is held, from samples taken each second."""

import math
from collections.abc import Callable

import pytest

from brisk_client.benchmarks.pressure.sampling import MemorySample, growth, since

pytestmark = pytest.mark.timing


def samples(count: int, held_at: Callable[[int], int]) -> list[MemorySample]:
    return [MemorySample(float(at), {"memory": held_at(at)}) for at in range(1, count + 1)]


def test_what_stays_equal_does_not_grow() -> None:
    assert growth(samples(60, lambda at: 1000), "memory", 10.0) == 0.0


def test_the_means_of_the_first_and_the_last_window_are_compared() -> None:
    stepped = samples(60, lambda at: 1000 if at <= 30 else 1100)
    assert growth(stepped, "memory", 10.0) == pytest.approx(0.1)


def test_a_peak_between_the_windows_is_no_growth() -> None:
    peaked = samples(60, lambda at: 5000 if 20 < at < 40 else 1000)
    assert growth(peaked, "memory", 10.0) == 0.0


def test_what_shrinks_grows_by_less_than_nothing() -> None:
    assert growth(samples(60, lambda at: 1000 if at <= 30 else 900), "memory", 10.0) < 0


def test_something_out_of_nothing_is_endless_growth() -> None:
    assert growth(samples(60, lambda at: 0), "memory", 10.0) == 0.0
    assert math.isinf(growth(samples(60, lambda at: 0 if at <= 30 else 1), "memory", 10.0))


def test_samples_that_do_not_cover_both_windows_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter than twice 10 s"):
        growth(samples(15, lambda at: 1000), "memory", 10.0)
    with pytest.raises(ValueError, match="shorter than twice"):
        growth([], "memory", 10.0)


def test_a_warm_up_is_cut_off_and_the_times_count_from_its_end() -> None:
    kept = since(samples(100, lambda at: at), 20.0, 60.0)
    assert [kept[0].at_s, kept[-1].at_s] == [0.0, 60.0]
    assert [kept[0].held_bytes["memory"], kept[-1].held_bytes["memory"]] == [20, 80]
