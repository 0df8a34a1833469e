"""Processes killed at any moment: clients see nothing of it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from brisk.triton.launch import TritonServer
from support.runtime.runtime_processes import processes_started_in
from support.server.clients import Load, clients_at_work
from support.server.entries import deep, doubled, write_entry
from support.server.running import (
    StartServer,
    runtime_directory,
    runtime_processes,
)
from support.waiting import TIMED, wait_until

pytestmark = [pytest.mark.server, pytest.mark.timing]

CLIENTS = 32


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("faults") / "repository"
    write_entry(directory, "deep", deep(20, 256))
    write_entry(directory, "doubled", doubled())
    return directory


@pytest.fixture(scope="module")
def server(start_shared: StartServer, repository: Path) -> TritonServer:
    """What one test kills has come again before the next, but for the stub of ``doubled``."""
    return start_shared(repository)


def answered_more(load: Load, count: int) -> Callable[[], bool]:
    before = load.answers
    return lambda: load.answers >= before + count


RECOVERY_S = 1.0
"""Promised from a worker's death until as many answers have come as there are clients."""


def test_a_killed_worker_costs_no_client_an_answer(server: TritonServer) -> None:
    recoveries_s = []
    with clients_at_work(server, CLIENTS) as load:
        for _ in range(5):
            wait_until(answered_more(load, 2 * CLIENTS), "answers between two kills", 30)
            _, worker = runtime_processes(server)
            os.kill(worker, signal.SIGKILL)
            started_s = time.monotonic()
            wait_until(answered_more(load, CLIENTS), "an answer after a kill", 30)
            recoveries_s.append(time.monotonic() - started_s)
    with TIMED:
        assert max(recoveries_s) < RECOVERY_S, recoveries_s
    assert load.errors == []
    assert load.wrong == 0


def test_a_killed_supervisor_costs_no_client_an_answer(server: TritonServer) -> None:
    with clients_at_work(server, CLIENTS) as load:
        for _ in range(2):
            wait_until(answered_more(load, 2 * CLIENTS), "answers between two kills", 60)
            supervisor, worker = runtime_processes(server)
            os.kill(supervisor, signal.SIGKILL)
            with TIMED:
                wait_until(lambda worker=worker: not alive(worker), "the worker's end", 5)
            wait_until(answered_more(load, 2 * CLIENTS), "answers after a kill", 60)
    assert load.errors == []
    assert load.wrong == 0


def alive(process: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_killed_stub_leaves_the_other_models_untouched(server: TritonServer) -> None:
    stub = next(
        process
        for process in processes_started_in(runtime_directory(server))
        if b"triton_python_backend_stub" in (line := command_line(process)) and b"doubled" in line
    )
    with clients_at_work(server, CLIENTS) as load:
        wait_until(answered_more(load, CLIENTS), "the first answers", 30)
        os.kill(stub, signal.SIGKILL)
        wait_until(answered_more(load, 4 * CLIENTS), "answers after the kill", 30)
    assert load.errors == []
    assert load.wrong == 0


def command_line(process: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""
