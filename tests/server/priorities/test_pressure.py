"""Many clients for a while: no error, and nothing that grows."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from brisk.triton.launch import TritonServer
from support.runtime.runtime_processes import processes_started_in
from support.server.clients import clients_at_work
from support.server.entries import deep, write_entry
from support.server.running import StartServer, runtime_directory

pytestmark = [pytest.mark.server, pytest.mark.timing]

CLIENTS = 64

NOISE_BYTES = 4 * 2**20
"""Of all processes together, some 700 MiB: allocators that take a page more and give it back moved
it by half a MiB. Over the 10,000 answers in between it is 0.4 KiB for each, a twentieth of its
tensors: a request that left one behind would be seen."""


def held(server: TritonServer) -> tuple[int, int]:
    """Resident bytes and open descriptors of the server, its stubs and its runtime."""
    resident_bytes = descriptors = 0
    for process in {server.pid, *processes_started_in(runtime_directory(server))}:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        resident_bytes += pages * os.sysconf("SC_PAGE_SIZE")
        descriptors += len(os.listdir(f"/proc/{process}/fd"))
    return resident_bytes, descriptors


def test_many_clients_see_no_error_and_nothing_grows(
    start_server: StartServer, tmp_path: Path
) -> None:
    write_entry(tmp_path / "repository", "deep", deep(20, 256))
    server = start_server(tmp_path / "repository")
    with clients_at_work(server, CLIENTS) as load:
        time.sleep(5)
        before_bytes, before_descriptors = held(server)
        answers = load.answers
        time.sleep(10)
        after = [held(server)]
        for _ in range(3):
            time.sleep(1)
            after.append(held(server))
    after_bytes, after_descriptors = (min(values) for values in zip(*after, strict=True))
    assert load.errors == []
    assert load.wrong == 0
    assert load.answers > answers + 10 * CLIENTS
    assert after_bytes <= before_bytes + NOISE_BYTES
    assert after_descriptors <= before_descriptors
