"""The runtime's environment variables: what is taken, and what is refused by name."""

from __future__ import annotations

import os

import pytest

from brisk.errors import InvalidConfigurationError
from brisk.runtime.settings import Settings, read_settings


def test_nothing_said_means_all_usable_cores_and_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("BRISK_THREADS", raising=False)
    monkeypatch.setenv("BRISK_IDLE_EXIT_S", "")
    assert read_settings() == Settings(len(os.sched_getaffinity(0)), 10.0)


def test_what_is_said_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRISK_THREADS", "3")
    monkeypatch.setenv("BRISK_IDLE_EXIT_S", "0.5")
    assert read_settings() == Settings(3, 0.5)


@pytest.mark.parametrize("text", ["0", "-1", "two", "0.5", "1.5", "nan", "inf", "1e999"])
def test_a_number_of_threads_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("BRISK_THREADS", text)
    with pytest.raises(InvalidConfigurationError, match=f"BRISK_THREADS must be .*, not '{text}'"):
        read_settings()


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "inf", "1e999", "1e300"])
def test_an_idle_time_that_cannot_be_waited_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("BRISK_IDLE_EXIT_S", text)
    with pytest.raises(InvalidConfigurationError, match=f"BRISK_IDLE_EXIT_S must .*'{text}'"):
        read_settings()
