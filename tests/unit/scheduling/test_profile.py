"""What runs take, what that predicts, and whom it refuses."""

from __future__ import annotations

import itertools

import pytest

from brisk.errors import UnavailableError
from brisk.scheduling.policies import PaddingTrial
from brisk.scheduling.profile import (
    FIRST_PAIRS,
    LONGEST_INTERVAL,
    MOST_PROFILES,
    RUNS_ALONE,
    TRIAL_INTERVAL,
    ProfileTable,
    RunProfile,
)
from brisk.scheduling.queue import refuse_if_late, retry_hint
from brisk.scheduling.share import HALF_LIFE_NS, ShareMeter


def learnt(alone_ns: list[int], beside_ns: list[int]) -> RunProfile:
    """Runs alone and beside best-effort work, in turns."""
    profile = RunProfile()
    for one_ns, other_ns in itertools.zip_longest(alone_ns, beside_ns):
        profile.learn_run(one_ns, beside=False)
        if other_ns is not None:
            profile.learn_run(other_ns, beside=True)
    return profile


def test_nothing_is_predicted_from_nothing() -> None:
    profile = RunProfile()
    assert (profile.run_ns, profile.slowdown, profile.layer_ns(0)) == (None, None, None)


def test_one_disturbed_run_changes_no_prediction() -> None:
    profile = learnt([100, 101, 99, 10_000, 100], [])
    assert profile.run_ns == 100


def test_a_slowdown_is_the_median_of_comparisons_once_there_are_some() -> None:
    assert learnt([100] * 3, [110] * 2).slowdown is None
    assert learnt([100] * 9, [110] * 8 + [500]).slowdown == pytest.approx(1.1)


def test_a_slowdown_that_is_uncertain_is_told_the_greater() -> None:
    even = learnt([100] * 13, [102] * 12).slowdown
    uneven = learnt([100] * 13, [82, 102, 122] * 4).slowdown
    few = learnt([100] * 6, [82, 102, 122, 82, 122]).slowdown
    assert even == pytest.approx(1.02)
    assert even is not None
    assert uneven is not None
    assert few is not None
    assert even + 0.02 < uneven < even + 0.12
    assert few > uneven


def test_a_machine_that_changes_its_pace_is_not_taken_for_a_slowdown() -> None:
    """All runs beside best-effort work but one are slow, because all later ones are."""
    profile = learnt([100] * 5, [])
    for beside in (False, True, True, False) * 5:
        profile.learn_run(300, beside)
    assert profile.slowdown == 1.0


def test_runs_with_different_numbers_of_threads_are_not_compared() -> None:
    profile = RunProfile()
    for _ in range(FIRST_PAIRS):
        profile.learn_run(100, beside=False, threads=2)
        profile.learn_run(170, beside=True, threads=1)
    assert profile.slowdown is None


def test_layers_are_averaged_and_another_number_of_them_begins_anew() -> None:
    profile = RunProfile()
    profile.learn_layers([100, 200])
    profile.learn_layers([200, 200])
    assert (profile.layer_ns(0), profile.layer_ns(1), profile.layer_ns(2)) == (120, 200, None)
    profile.learn_layers([7])
    assert (profile.layer_ns(0), profile.layer_ns(1)) == (7, None)


def test_a_run_is_tried_alone_and_beside_in_turns_and_rarely_again() -> None:
    profile = RunProfile()
    tried = []
    while profile.slowdown is None:
        tried.append(profile.next_trial(1.05))
        profile.learn_run(100, beside=tried[-1] is PaddingTrial.BESIDE)
    block = [*[PaddingTrial.ALONE] * RUNS_ALONE, PaddingTrial.BESIDE]
    runs = (RUNS_ALONE + 1) * FIRST_PAIRS // 2 + RUNS_ALONE - 1  # two comparisons a block
    assert tried == (block * FIRST_PAIRS)[:runs]
    profile.next_trial(1.05)
    later = [profile.next_trial(1.05) for _ in range(10 * TRIAL_INTERVAL)]
    assert later.count(PaddingTrial.ALONE) == 10
    assert later.count(PaddingTrial.BESIDE) == 0


def test_what_is_held_is_tried_beside_again_ever_more_rarely() -> None:
    profile = learnt([100] * FIRST_PAIRS, [300] * FIRST_PAIRS)
    later = [profile.next_trial(1.05) for _ in range(4 * LONGEST_INTERVAL)]
    tried = [number for number, trial in enumerate(later, 1) if trial is PaddingTrial.BESIDE]
    assert tried == [TRIAL_INTERVAL * (2**n - 1) for n in range(1, 6)] + [1008, 1520, 2032]
    assert PaddingTrial.ALONE not in later


def test_a_verdict_that_changes_is_tried_at_short_intervals_again() -> None:
    profile = learnt([100] * FIRST_PAIRS, [300] * FIRST_PAIRS)
    for _ in range(LONGEST_INTERVAL):
        profile.next_trial(1.05)
    later = [profile.next_trial(3.5) for _ in range(2 * TRIAL_INTERVAL)]
    assert later.count(PaddingTrial.ALONE) == 2
    tried = [profile.next_trial(1.05) for _ in range(TRIAL_INTERVAL)]
    assert tried.count(PaddingTrial.BESIDE) == 1


def test_a_clear_slowdown_takes_fewer_comparisons() -> None:
    assert learnt([100] * 2, [130] * 2).slowdown == 1.3
    assert learnt([100] * 2, [130, 120]).slowdown is None


def test_a_table_of_profiles_is_bounded_and_forgets_the_one_not_used_for_longest() -> None:
    table = ProfileTable()
    kept = table.find("kept")
    for number in range(MOST_PROFILES - 1):
        table.find(number)
    assert table.find("kept") is kept
    table.find("one more")
    assert len(table) == MOST_PROFILES
    assert table.find("kept") is kept
    table.find(1).learn_run(5, beside=False)
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
