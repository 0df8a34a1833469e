"""A background worker that stands still; what compares no times: ``test_two_workers``."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from brisk.protocol.runtime_paths import RuntimePaths
from brisk.stub.runtime_client.client import RuntimeClient
from support.runtime.runtime_process import Answer, submit
from support.runtime.two_workers import background
from support.waiting import TIMED, wait_until

pytestmark = pytest.mark.timing

ROWS = np.arange(40, dtype=np.float32).reshape(10, 4)


def stop(worker: int) -> None:
    """Once it sleeps: one in a layer is stopped, and let go on, by real-time runs themselves."""
    status = Path(f"/proc/{worker}/stat")
    with TIMED:
        wait_until(lambda: status.read_text().rpartition(")")[2].split()[0] == "S", "its sleep")
    os.kill(worker, signal.SIGSTOP)


def answer_in(connection: RuntimeClient, job_class: str) -> np.ndarray:
    return submit(connection, ROWS, job_class)[1].output()


def test_a_background_worker_that_stands_still_holds_no_real_time_request_up(
    shared_place: RuntimePaths, connection: RuntimeClient
) -> None:
    """More best-effort requests than its socket takes, from the thread that sends urgent ones."""
    answer_in(connection, "besteffort")
    worker = background(shared_place)
    sent: list[Answer] = []
    stop(worker)
    try:
        started_s = time.monotonic()
        for _ in range(3000):
            sent.append(submit(connection, ROWS[:1], "besteffort")[1])
        sent_s = time.monotonic()
        for _ in range(20):
            np.testing.assert_array_equal(answer_in(connection, "realtime"), -ROWS)
        with TIMED:
            assert time.monotonic() - sent_s < 1.0, "they take some 20 ms"
            assert sent_s - started_s < 20.0, "the records to it do not wait for it to read them"
        assert not any(answer.has_come for answer in sent)
    finally:
        os.kill(worker, signal.SIGCONT)
    for answer in sent:
        answer.wait()
        assert answer.times == 1
    np.testing.assert_array_equal(answer_in(connection, "besteffort"), -ROWS)
