"""The process beside a worker: asked, ended, started again."""

from __future__ import annotations

import math
import signal

import pytest

from brisk.runtime.helper_process import HelperProcess
from support.waiting import wait_until

LONG_RUNNING = "http.server", "--bind", "127.0.0.1", "0"
"""A module of the standard library that does not end by itself, and its arguments."""


def test_one_that_ends_leaves_its_status_and_is_forgotten() -> None:
    helper = HelperProcess("json.tool", is_asked=True)
    assert helper.process_id is None
    assert helper.ended() is None
    assert helper.age_s == math.inf
    helper.start()
    assert helper.process_id is not None
    assert 0 <= helper.age_s < 60
    asked, answers = helper.pipes
    asked.write(b"[1]")
    asked.close()
    assert answers.read().split() == [b"[", b"1", b"]"]
    assert helper.ended(30.0) == 0
    assert helper.process_id is None
    assert helper.ended() is None


def test_one_that_fails_says_so_and_may_be_started_again() -> None:
    helper = HelperProcess("json.tool")
    for _ in range(2):
        helper.start("--no-such-option")
        assert helper.ended(30.0) == 2


def test_one_that_goes_on_is_killed_and_waited_for() -> None:
    helper = HelperProcess(LONG_RUNNING[0])
    helper.start(*LONG_RUNNING[1:])
    assert helper.ended() is None
    assert helper.ended(0.05) is None
    helper.kill()
    wait_until(lambda: helper.ended() == -signal.SIGKILL, "its end")
    helper.end()
    helper.start(*LONG_RUNNING[1:])
    helper.end()
    assert helper.process_id is None


def test_what_is_not_there_is_not_asked() -> None:
    with pytest.raises(AssertionError):
        _ = HelperProcess("json.tool", is_asked=True).pipes
