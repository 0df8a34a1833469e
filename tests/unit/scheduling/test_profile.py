"""The times that runs take, what they predict, and whom that refuses."""

from __future__ import annotations

import pytest

from brisk.errors import UnavailableError
from brisk.scheduling.refusals import refuse_if_late, retry_hint
from brisk.scheduling.times import (
    HALF_LIFE_NS,
    MOST_PROFILES,
    RECENT_RUNS,
    ProfileTable,
    RunProfile,
    ShareMeter,
)


def learnt(*runs_ns: int) -> RunProfile:
    profile = RunProfile()
    for taken_ns in runs_ns:
        profile.learn(taken_ns)
    return profile


def test_nothing_is_predicted_from_nothing() -> None:
    assert RunProfile().run_ns is None


def test_one_disturbed_run_changes_no_prediction() -> None:
    assert learnt(100, 101, 99, 10_000, 100).run_ns == 100


def test_what_was_long_ago_is_forgotten() -> None:
    assert learnt(*[100] * 50, *[300] * RECENT_RUNS).run_ns == 300


def test_a_table_of_profiles_is_bounded_and_forgets_the_one_not_used_for_longest() -> None:
    table = ProfileTable()
    profile = table.find("kept")
    for number in range(MOST_PROFILES - 1):
        table.find(number)
    assert table.find("kept") is profile
    table.find("one more")
    assert len(table) == MOST_PROFILES
    assert table.find("kept") is profile
    table.find(1).learn(5)
    assert (table.run_ns(1), table.run_ns(0)) == (5, None)


@pytest.mark.parametrize(
    ("now_ns", "ahead_ns", "end_ns"),
    [
        (1_000, [100, None, 200], 1_850),
        (2_000, [], 2_050),  # what should have ended by now holds nothing up
    ],
)
def test_a_job_is_done_after_what_runs_and_what_goes_first(
    now_ns: int, ahead_ns: list[float | None], end_ns: int
) -> None:
    refuse_if_late(now_ns, end_ns, 1_500, ahead_ns, 50)
    with pytest.raises(UnavailableError):
        refuse_if_late(now_ns, end_ns - 1, 1_500, ahead_ns, 50)


def test_nothing_is_refused_whose_own_time_is_not_known() -> None:
    refuse_if_late(0, 1, 1_500, [100], None)


def test_a_deadline_that_cannot_be_met_is_refused_with_a_hint() -> None:
    refuse_if_late(0, 60_000_000, 30_000_000, [10_000_000], 20_000_000)
    expected = (
        r"time-out of 45\.5 ms cannot be met: .* free in 40\.0 ms .* takes 20\.0 ms; "
        r"retry in 15 ms"
    )
    with pytest.raises(UnavailableError, match=expected):
        refuse_if_late(0, 45_500_000, 30_000_000, [10_000_000], 20_000_000)


def test_a_time_out_shorter_than_the_run_alone_is_refused_without_a_time_to_retry() -> None:
    expected = (
        r"time-out of 4\.5 ms cannot be met: the request alone takes 12\.2 ms; "
        r"give it a longer time-out$"
    )
    with pytest.raises(UnavailableError, match=expected):
        refuse_if_late(0, 4_500_000, None, [], 12_200_000)


def test_a_refusal_names_the_time_out_that_was_set_and_what_is_left_of_it() -> None:
    expected = (
        r"time-out of 15\.0 ms, of which 12\.5 ms are left, cannot be met: .* takes 14\.7 ms"
    )
    with pytest.raises(UnavailableError, match=expected):
        refuse_if_late(2_500_000, 15_000_000, None, [], 14_700_000, 0)
    passed = (
        r"^the request's time-out ran out: it is 0\.1 ms, and 0\.5 ms have passed since it came; "
        r"give it a longer one$"
    )
    with pytest.raises(UnavailableError, match=passed):
        refuse_if_late(500_000, 100_000, None, [], 14_700_000, 0)


def test_a_hint_is_whole_milliseconds_and_never_none() -> None:
    assert retry_hint(1) == "retry in 1 ms"
    assert retry_hint(2_000_001) == "retry in 3 ms"
    assert retry_hint(None) == "retry in 100 ms"


def test_a_share_is_the_part_of_the_recent_time_in_which_work_ran() -> None:
    meter = ShareMeter()
    meter.change(0, is_held=False)
    assert meter.share(1_000_000) == 1.0
    meter.change(1_000_000, is_held=True)
    assert meter.share(4_000_000) == pytest.approx(0.25, abs=0.01)
    meter.change(4_000_000, is_held=False)
    assert meter.share(4_000_000 + 10 * HALF_LIFE_NS) == pytest.approx(1.0, abs=0.01)


def test_time_without_work_does_not_count_as_held() -> None:
    meter = ShareMeter()
    meter.change(0, is_held=False)
    meter.change(1_000_000, is_held=True)
    meter.rest()
    assert meter.share(10**12) == 1.0
