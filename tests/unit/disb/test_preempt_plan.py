"""What `brisk bench preempt` takes on by its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from brisk.errors import InvalidConfigurationError
from brisk_bench.disb.plan import SETTINGS, Plan, plan_of
from brisk_bench.preempt import TRITON_NOTE, main, make_parser, notes_of


def plan(*arguments: str) -> Plan:
    return plan_of(make_parser().parse_args(arguments))


def test_a_full_run_measures_as_long_as_the_paper_and_enough_for_its_tails() -> None:
    whole = plan()
    assert (whole.rounds, whole.seconds, whole.trial_s) == (3, 60.0, 10.0)
    assert whole.workloads == ("A", "B", "C", "D", "E", "REAL")
    assert whole.sides == ("RT-only", "preemptive", "shared", "triton")
    assert whole.settings == SETTINGS, "each has a trial"
    assert whole.probed == ["preemptive", "sequential"]
    assert whole.interruptions >= 1000
    assert whole.points == 10_000


def test_a_quick_run_is_short_whatever_else_is_asked() -> None:
    quick = plan("--quick", "--rounds", "9", "--seconds", "60")
    assert (quick.rounds, quick.seconds) == (1, 2.0)
    assert len(quick.settings) < len(SETTINGS)


def test_trials_of_tritons_settings_are_no_longer_than_what_counts() -> None:
    trying = plan("--trial-seconds", "15")
    assert (trying.seconds, trying.trial_s) == (60.0, 15.0)
    assert plan("--seconds", "4").trial_s == 4.0


def test_policies_are_measured_beside_each_other_in_every_round() -> None:
    pair = plan("--side", "preemptive", "--side", "deadline", "--side", "preemptive")
    assert pair.sides == ("RT-only", "preemptive", "deadline")


def test_real_without_its_trace_ends_the_command_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    with pytest.raises(InvalidConfigurationError, match=r"REAL needs its trace: --real FILE"):
        plan("--workload", "REAL")
    assert plan("--workload", "REAL", "--real", str(tmp_path)).real == tmp_path


def test_without_triton_none_of_its_settings_is_started() -> None:
    assert plan("--side", "preemptive").settings == ()


def test_triton_is_told_of_only_where_it_takes_part() -> None:
    told = notes_of(plan("--side", "triton", "--trial-seconds", "15"))
    assert TRITON_NOTE.format(15) in told
    for arguments in (("--side", "preemptive"), ("--part", "pairs")):
        notes = notes_of(plan(*arguments))
        assert not any(note.startswith("triton: ") for note in notes), arguments


def test_policies_that_make_requests_wait_are_asked_less() -> None:
    probing = plan("--side", "preemptive", "--side", "sequential", "--interruptions", "500")
    assert [probing.requests_of(side) for side in probing.probed] == [500, 50]


def test_a_folder_without_the_peer_s_backend_ends_the_command_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    with pytest.raises(InvalidConfigurationError, match=r"libtriton_onnxruntime\.so"):
        main(["--quick", "--part", "equality", "--peer-backends", str(tmp_path)])
