"""The gate seen from another process, and the niceness at which best-effort work runs."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from brisk.os_priority import lower_best_effort, niceness_for
from brisk.runtime.preemption.gate import Gate


@pytest.mark.parametrize(("share", "niceness"), [(0.01, 17), (0.1, 9), (0.12, 8), (0.5, 0)])
def test_a_share_takes_the_niceness_whose_weight_gives_it(share: float, niceness: int) -> None:
    assert niceness_for(share) == niceness


def in_child(action: Any) -> int:
    """What ``action`` returns in a forked process, as its exit status."""
    process = os.fork()
    if not process:
        status = 99
        try:
            status = int(action())
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def test_what_one_process_writes_the_other_reads() -> None:
    gate = Gate()
    gate.close(3, None)
    assert in_child(lambda: gate.realtime().count) == 3

    def begin() -> int:
        gate.begin_segment()
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    assert in_child(begin) == -signal.SIGKILL
    assert gate.page.segment_runs
    gate.pause_segments()
    assert not gate.page.segment_runs


@pytest.mark.parametrize(("share", "niceness"), [(0.0, 19), (0.1, 9)])
def test_best_effort_work_runs_at_the_niceness_of_its_share(share: float, niceness: int) -> None:
    def chosen() -> int:
        lower_best_effort(share)
        return os.getpriority(os.PRIO_PROCESS, 0)

    assert in_child(chosen) == niceness
