"""Children of measurements: what they say is heard, and none outlives its context."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection

import pytest

from brisk_client.workload.child_process import child_process


def _doubles(parent: Connection, first: int) -> None:
    parent.send(os.getpid())
    parent.send(2 * first)
    parent.send(2 * parent.recv())


def _never_ends(parent: Connection) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent.send(os.getpid())
    time.sleep(3600)


def test_a_child_is_told_and_heard_and_its_end_is_an_error() -> None:
    with child_process("the child", _doubles, 21) as child:
        assert child.hear(60.0) != os.getpid()
        assert child.hear(60.0) == 42
        with pytest.raises(TimeoutError, match="the child does not answer"):
            child.hear(0.05)
        child.check()
        child.say(4)
        assert child.hear(60.0) == 8
        with pytest.raises(ConnectionError, match="the child ended with status 0"):
            child.hear(60.0)
        with pytest.raises(ConnectionError, match="the child ended with status 0"):
            child.check()


def test_a_child_that_does_not_end_is_killed() -> None:
    with child_process("the child", _never_ends, end_s=0.1) as child:
        process = child.hear(60.0)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_ctrl_c_ends_a_child_without_a_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # else it may be ignored
    try:
        with child_process("the child", _never_ends) as child:
            os.kill(child.hear(60.0), signal.SIGINT)
            with pytest.raises(ConnectionError, match=f"ended with status {-signal.SIGINT}"):
                child.hear(60.0)
    finally:
        signal.signal(signal.SIGINT, before)
    assert capfd.readouterr().err == ""
