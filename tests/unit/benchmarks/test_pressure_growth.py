"""Growth of what is held, from samples taken each second."""

import math

import pytest

from brisk_bench import pressure, soak
from brisk_bench.harness.command_line import UnusableArgumentError
from brisk_bench.pressure.sampling import growth


def test_what_stays_equal_does_not_grow() -> None:
    assert growth([1000] * 60, 10) == 0.0


def test_the_means_of_the_first_and_the_last_window_are_compared() -> None:
    assert growth([1000] * 30 + [1100] * 30, 10) == pytest.approx(0.1)


def test_a_peak_between_the_windows_is_no_growth() -> None:
    assert growth([1000] * 20 + [5000] * 20 + [1000] * 20, 10) == 0.0


def test_what_shrinks_grows_by_less_than_nothing() -> None:
    assert growth([1000] * 30 + [900] * 30, 10) < 0


def test_something_out_of_nothing_is_endless_growth() -> None:
    assert growth([0] * 60, 10) == 0.0
    assert math.isinf(growth([0] * 30 + [1] * 30, 10))


def test_samples_that_do_not_cover_both_windows_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter than twice 10 s"):
        growth([1000] * 15, 10)
    with pytest.raises(ValueError, match="shorter than twice"):
        growth([], 10)


def test_a_time_that_has_no_two_windows_is_refused_before_anything_is_measured() -> None:
    for module, seconds, least in ((pressure, 2.0, 3), (soak, 20.0, 30)):
        with pytest.raises(UnusableArgumentError, match=f"--seconds {seconds:g}: .* {least}"):
            module.run(seconds=seconds)
