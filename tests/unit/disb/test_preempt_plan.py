"""What `brisk bench preempt` takes on by its options, and how long it says that takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from brisk.errors import InvalidConfigurationError
from brisk_client.benchmarks.preempt import (
    estimate_s,
    main,
    plan_of,
    told_minutes,
)
from brisk_client.disb.comparison import Extent
from brisk_client.disb.sides import SETTINGS


def test_a_full_run_measures_as_long_as_the_paper_and_enough_for_its_tails() -> None:
    plan = plan_of()
    assert plan.extent == Extent(3, 60.0, 60.0)
    assert not plan.extent.screens
    assert plan.settings == SETTINGS
    assert plan.interruptions >= 1000
    assert plan.points == 10_000


def test_a_quick_run_is_short_whatever_else_is_asked() -> None:
    plan = plan_of(quick=True, rounds=9, seconds=60.0)
    assert (plan.extent.rounds, plan.extent.seconds) == (1, 2.0)
    assert len(plan.settings) < len(SETTINGS)


def test_shorter_runs_of_tritons_settings_screen_them() -> None:
    assert plan_of(baseline_s=15.0).extent == Extent(3, 60.0, 15.0)
    assert plan_of(baseline_s=15.0).extent.screens
    assert not plan_of(baseline_s=90.0).extent.screens


def test_without_triton_none_of_its_settings_is_started() -> None:
    assert plan_of(sides=("padded",)).settings == ()


def test_a_folder_without_the_peer_s_backend_ends_the_command_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    with pytest.raises(InvalidConfigurationError, match=r"libtriton_onnxruntime\.so"):
        main(["--quick", "--part", "equality", "--peer-backends", str(tmp_path)])


def test_the_time_told_grows_with_what_is_measured() -> None:
    def minutes(rounds: int, baseline_s: float) -> float:
        plan = plan_of(
            parts=("workloads",),
            workloads=("A", "C", "D", "E"),
            sides=("padded", "shared", "triton"),
            rounds=rounds,
            baseline_s=baseline_s,
        )
        found = estimate_s(plan)
        return found["workloads"] / 60

    assert minutes(1, 60.0) > 4 * 8, "four workloads, eight sides of a minute each"
    assert minutes(1, 10.0) < minutes(1, 60.0) < minutes(3, 60.0)
    assert (
        told_minutes({"pairs": 100.0, "equality": 20.0})
        == "2 minutes in all (pairs 2, equality 1)"
    )
