"""A runtime stays in its starter's scheduling group, and out of reach of its signals."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from brisk.protocol.runtime_paths import RuntimePaths
from support.runtime.runtime_process import (
    describe,
    infer,
    opened,
    processes_of,
    submit,
    supervisor_of,
    worker_of,
)
from support.runtime.two_workers import background

AUTOGROUPS = Path("/proc/sys/kernel/sched_autogroup_enabled")
ROWS = np.ones((2, 4), np.float32)


def test_both_workers_are_in_the_starters_session_and_in_a_process_group_of_their_own(
    place: RuntimePaths, quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And as nice as the starter was at first, whatever it has become for its own model."""
    at_first = os.getpriority(os.PRIO_PROCESS, 0) + 3
    monkeypatch.setattr("brisk.stub.runtime_client.runtime_process.NICENESS", at_first)
    with opened(place, describe(quick)) as connection:
        submit(connection, ROWS, "besteffort")[1].output()
        supervisor = supervisor_of(place)
        for process in processes_of(place):
            assert os.getsid(process) == os.getsid(0)
            assert os.getpgid(process) == supervisor
        assert os.getpriority(os.PRIO_PROCESS, supervisor) == at_first


@pytest.mark.skipif(
    not AUTOGROUPS.exists() or AUTOGROUPS.read_text().strip() != "1",
    reason="this kernel makes no scheduling group of a session",
)
def test_best_effort_work_is_in_the_scheduling_group_of_what_it_gives_way_to(
    place: RuntimePaths, quick: Path
) -> None:
    own = Path("/proc/self/autogroup").read_text()
    with opened(place, describe(quick)) as connection:
        submit(connection, ROWS, "besteffort")[1].output()
        worker = background(place)
        assert os.getpriority(os.PRIO_PROCESS, worker) == 19
        assert Path(f"/proc/{worker}/autogroup").read_text() == own


def test_a_hang_up_of_the_terminal_does_not_end_a_runtime(
    place: RuntimePaths, quick: Path
) -> None:
    with opened(place, describe(quick)) as connection:
        worker = worker_of(place)
        os.killpg(supervisor_of(place), signal.SIGHUP)
        np.testing.assert_array_equal(infer(connection, ROWS), -ROWS)
        assert worker_of(place) == worker
