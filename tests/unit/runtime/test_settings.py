"""The runtime's environment variables: what is taken, and what is refused by name."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from brisk.cli.commands.serve import serve
from brisk.doctor import machine
from brisk.doctor.deployment import Severity
from brisk.errors import InvalidConfigurationError
from brisk.runtime.settings import MIB, ArtefactUse, Settings, read_settings
from brisk.scheduling.policies import POLICIES, Limits
from brisk.settings import check_settings
from support.deployments import deployment


def test_nothing_said_means_all_usable_cores_and_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("BRISK_THREADS", raising=False)
    monkeypatch.setenv("BRISK_IDLE_EXIT_S", "")
    monkeypatch.delenv("BRISK_ARTEFACTS", raising=False)
    monkeypatch.delenv("BRISK_SAMPLED_SHARE", raising=False)
    settings = read_settings()
    assert (settings.threads, settings.idle_exit_s) == (len(os.sched_getaffinity(0)), 10.0)
    assert (settings.policy.name, settings.limits) == ("preemptive", Limits(0.0, 0.05))
    assert (settings.outstanding_launches, settings.max_waiting) == (2, 4096)
    assert settings.gpu_bytes == 0
    half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
    assert settings.background_bytes == pytest.approx(half, rel=0.01)
    assert settings.artefacts is ArtefactUse.BUILD
    assert (settings.sampled_share, settings.sample_bytes) == (0.2, 256 * MIB)
    assert (settings.adaptation_s, settings.max_load_s) == (60, 600)


def test_what_is_said_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRISK_THREADS", "3")
    monkeypatch.setenv("BRISK_IDLE_EXIT_S", "0.5")
    monkeypatch.setenv("BRISK_POLICY", "deadline")
    monkeypatch.setenv("BRISK_BESTEFFORT_SHARE", "0.1")
    monkeypatch.setenv("BRISK_NORMAL_SHARE", "0.02")
    monkeypatch.setenv("BRISK_OUTSTANDING_LAYERS", "5")
    monkeypatch.setenv("BRISK_GPU_MEMORY", "2048")
    monkeypatch.setenv("BRISK_MAX_WAITING", "7")
    monkeypatch.setenv("BRISK_BACKGROUND_MIB", "100")
    monkeypatch.setenv("BRISK_ARTEFACTS", "use")
    monkeypatch.setenv("BRISK_SAMPLED_SHARE", "0.5")
    monkeypatch.setenv("BRISK_SAMPLES_MIB", "3")
    monkeypatch.setenv("BRISK_ADAPTATION_S", "0")
    monkeypatch.setenv("BRISK_REALTIME_NICENESS", "-3")
    monkeypatch.setenv("BRISK_MAX_LOAD_S", "90")
    monkeypatch.setenv("BRISK_STUB_COMPUTES", "0")
    monkeypatch.setenv("BRISK_SIDE_BY_SIDE", "0")
    limits = Limits(share=0.1, normal_share=0.02)
    assert read_settings() == Settings(
        3,
        0.5,
        POLICIES["deadline"],
        limits,
        5,
        2048 * MIB,
        7,
        100 * MIB,
        ArtefactUse.USE,
        0.5,
        3 * MIB,
        0.0,
        -3,
        90.0,
        False,
        False,
    )


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("BRISK_ARTEFACTS", "of", "one of build, use, off, not 'of'; did you mean 'off'"),
        ("BRISK_POLICY", "premptive", "unknown policy 'premptive', did you mean 'preemptive'"),
        ("BRISK_MAX_LOAD_S", "0", "must be a positive number of at most 1000000, not '0'"),
        ("BRISK_BESTEFFORT_SHARE", "1", "must be a number from 0 to 0.5, not '1'"),
        ("BRISK_NORMAL_SHARE", "0.6", "must be a number from 0 to 0.5, not '0.6'"),
        ("BRISK_BESTEFFORT_SHARE", "a tenth", "must be a number from 0 to 0.5"),
        ("BRISK_SAMPLED_SHARE", "1.5", "must be a number from 0 to 1, not '1.5'"),
        ("BRISK_MAX_WAITING", "2.5", "must be a whole number from 1 to 1000000, not '2.5'"),
        ("BRISK_THREADS", "100000", "must be a whole number from 1 to 1024, not '100000'"),
        ("BRISK_BACKGROUND_MIB", "-1", "must be a positive number"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str, reason: str
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(InvalidConfigurationError, match=reason):
        read_settings()
    with pytest.raises(InvalidConfigurationError, match=f"^{name}.* {reason}"):
        serve(["--repository", str(tmp_path)])
    wrong = {name: text, "BRISK_THREADS": "0", "BRISK_CACHE_MIB": "1G"}
    reports = [each.found for each in machine.settings(deployment(tmp_path, environment=wrong))]
    assert len(reports) == len(wrong), "each variable once"
    if name != "BRISK_THREADS":
        assert re.search(f"(?m)^{name}.* {reason}", "\n".join(reports))


@pytest.mark.parametrize(("limit", "expected_mib"), [(str(512 * MIB), 256), ("max", None)])
def test_a_container_s_memory_is_what_its_control_group_allows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str, expected_mib: int | None
) -> None:
    (tmp_path / "memory.max").write_text(limit + "\n")
    monkeypatch.setattr("brisk.runtime.settings.CONTROL_GROUP_LIMIT", tmp_path / "memory.max")
    allowed = read_settings().background_bytes
    if expected_mib is None:
        assert allowed > 1024 * MIB
    else:
        assert allowed == expected_mib * MIB


@pytest.mark.parametrize("text", ["0", "-1", "two", "nan", "inf", "1e999", "1e300"])
@pytest.mark.parametrize("name", ["BRISK_THREADS", "BRISK_IDLE_EXIT_S"])
def test_a_number_that_is_none_or_cannot_be_waited_for_is_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=f"{name} must be .*, not '{text}'"):
        read_settings({name: text})


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("BRISK_FORK_STUBS", "no", r"must be 1 \(stubs are forked .*\) or 0 \(.*\), not 'no'"),
        ("BRISK_REMOTE_URLS", "models.example", "must be prefixes of URLs .*'models.example'"),
        ("BRISK_METRICS_INTERVAL_S", "-1", "must be a number of seconds from 0 "),
        ("BRISK_ACCURACY", "97", "must be a share from 0.5 to 0.999999, or off, not '97'"),
        ("BRISK_ACCURACY", "0.9999999", "must be a share .*, not '0.9999999'"),
        ("BRISK_CUSTOM_OPS", "yes", "must be 1 .* or 0 .*, not 'yes'"),
        ("BRISK_PEERS", "host", "must be host:port"),
        ("BRISK_PEER_LISTEN", ":7700", "must be host:port"),
        ("BRISK_PEERS", "host:" + 5000 * "7", "must be host:port"),
        ("BRISK_PEER_LISTEN", "host..example:7700", "must be host:port"),
        ("BRISK_PEER_KEYS", "/no/such", "must be a folder that 'brisk hosts init' .* '/no/such'"),
        ("BRISK_CACHE_MIB", "1G", "must be a whole number of MiB above 0, not '1G'"),
        ("BRISK_CACHE_MIB", 5000 * "9", "must be a whole number of MiB above 0, not '9{40}'"),
    ],
)
def test_a_wrong_setting_of_stubs_or_of_the_courier_is_told_by_serve_and_doctor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str, reason: str
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(InvalidConfigurationError, match=f"^{name} {reason}"):
        check_settings()
    with pytest.raises(InvalidConfigurationError, match=f"^{name} {reason}"):
        serve(["--repository", str(tmp_path)])
    (found,) = machine.settings(deployment(tmp_path, environment={name: text}))
    assert found.verdict is Severity.PROBLEM
    assert re.match(f"{name} {reason}", found.found)
