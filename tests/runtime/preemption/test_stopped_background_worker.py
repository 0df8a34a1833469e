"""A background worker that stands still. ``test_two_workers`` has what compares no times."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from brisk.protocol.gate_page import GatePage
from brisk.protocol.runtime_paths import RuntimePaths
from brisk.stub.runtime_client.client import RuntimeClient
from support.runtime.runtime_process import Answer, background_worker_of, submit
from support.runtime.runtime_processes import hurry_helpers, state_of
from support.runtime.two_workers import background
from support.waiting import TIMED, wait_until

pytestmark = pytest.mark.timing

ROWS = np.arange(40, dtype=np.float32).reshape(10, 4)


def computes_a_segment(worker: int) -> bool:
    """Whether the gate, a page of shared memory that the worker holds open, says so."""
    for descriptor in Path(f"/proc/{worker}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just been closed
            if "brisk-gate" in os.readlink(descriptor):
                return GatePage.from_buffer_copy(descriptor.read_bytes()).segment_runs != 0
    raise AssertionError(f"process {worker} has no gate")


def stop(worker: int) -> None:
    """Stop the worker when it has nothing to do.

    Real-time runs stop a worker that they come upon in a segment, and let it go on at their end:
    so they would wake one that was stopped here too early. Its last answer comes before the end of
    its segment is written to the gate.
    """
    with TIMED:
        wait_until(lambda: not computes_a_segment(worker), "the end of its segment")
        wait_until(lambda: state_of(worker) == "S", "its sleep")
    os.kill(worker, signal.SIGSTOP)
    with TIMED:
        wait_until(lambda: state_of(worker) == "T", "its stop")


def start_background(place: RuntimePaths, connection: RuntimeClient) -> int:
    """Ask for the background worker, and return its process once it has answered.

    It has only what others leave idle, which on a busy machine is nothing for longer than a test
    waits: here it gets its share of the processors.
    """
    answer = submit(connection, ROWS, "besteffort")[1]

    def has_come() -> bool:
        hurry_helpers(place.base)
        if (worker := background_worker_of(place)) is not None:
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, worker, 0)
        return answer.has_come

    wait_until(has_come, "the best-effort answer", every_s=0.1)
    np.testing.assert_array_equal(answer.output(), -ROWS)
    return background(place)


def test_a_background_worker_that_stands_still_holds_no_real_time_request_up(
    shared_place: RuntimePaths, connection: RuntimeClient
) -> None:
    """More best-effort requests than its socket takes, from the thread that sends urgent ones."""
    worker = start_background(shared_place, connection)
    sent: list[Answer] = []
    stop(worker)
    try:
        started_s = time.monotonic()
        for _ in range(3000):
            sent.append(submit(connection, ROWS[:1], "besteffort")[1])
        sent_s = time.monotonic()
        for _ in range(20):
            answer = submit(connection, ROWS, "realtime")[1]
            np.testing.assert_array_equal(answer.output(), -ROWS)
        with TIMED:
            assert time.monotonic() - sent_s < 1.0, "they take some 20 ms"
            assert sent_s - started_s < 20.0, "the records to it do not wait for it to read them"
        assert not any(answer.has_come for answer in sent)
    finally:
        os.kill(worker, signal.SIGCONT)
    for answer in sent:
        answer.wait()
        assert answer.times == 1
    last = submit(connection, ROWS, "besteffort")[1]
    np.testing.assert_array_equal(last.output(), -ROWS)
