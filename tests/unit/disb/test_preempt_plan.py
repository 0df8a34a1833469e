"""What `brisk bench preempt` takes on by its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from brisk.errors import InvalidConfigurationError
from brisk_client.benchmarks.preempt import BASELINES, main, make_parser, notes_of
from brisk_client.disb.plan import SETTINGS, Plan, plan_of


def plan(*arguments: str) -> Plan:
    return plan_of(make_parser().parse_args(arguments))


def test_a_full_run_measures_as_long_as_the_paper_and_enough_for_its_tails() -> None:
    whole = plan()
    assert (whole.rounds, whole.seconds, whole.baseline_s) == (3, 60.0, 60.0)
    assert not whole.screens
    assert whole.settings == SETTINGS
    assert whole.interruptions >= 1000
    assert whole.points == 10_000


def test_a_quick_run_is_short_whatever_else_is_asked() -> None:
    quick = plan("--quick", "--rounds", "9", "--seconds", "60")
    assert (quick.rounds, quick.seconds) == (1, 2.0)
    assert len(quick.settings) < len(SETTINGS)


def test_shorter_runs_of_tritons_settings_screen_them() -> None:
    screening = plan("--triton-seconds", "15")
    assert (screening.seconds, screening.baseline_s) == (60.0, 15.0)
    assert screening.screens
    assert not plan("--triton-seconds", "90").screens


def test_without_triton_none_of_its_settings_is_started() -> None:
    assert plan("--side", "padded").settings == ()


def test_triton_is_told_of_only_where_it_takes_part() -> None:
    assert BASELINES in notes_of(plan("--side", "triton"))
    assert any("stage screening" in note for note in notes_of(plan("--triton-seconds", "15")))
    for arguments in (("--side", "padded"), ("--part", "pairs")):
        notes = notes_of(plan(*arguments, "--triton-seconds", "15"))
        assert not any(note.startswith("triton: ") for note in notes), arguments


def test_policies_that_make_requests_wait_are_asked_less() -> None:
    probing = plan("--side", "padded", "--side", "sequential", "--interruptions", "500")
    assert [probing.requests_of(side) for side in probing.probed] == [500, 50]


def test_a_folder_without_the_peer_s_backend_ends_the_command_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    with pytest.raises(InvalidConfigurationError, match=r"libtriton_onnxruntime\.so"):
        main(["--quick", "--part", "equality", "--peer-backends", str(tmp_path)])
