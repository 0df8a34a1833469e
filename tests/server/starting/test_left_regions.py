"""Shared memory that a server and its stubs leave when all of them are killed at once."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from brisk_client.inference import InferenceClient, Transport
from support.runtime.runtime_processes import processes_started_in
from support.server.entries import doubled, write_entry
from support.server.running import private_runtime
from support.server.scraping import PATIENCE_S
from support.waiting import TIMED, wait_until

# Not beside other files: any ``brisk serve`` removes what killed servers have left.
pytestmark = [pytest.mark.server, pytest.mark.timing]

ROW = np.ones((1, 4), np.float32)

SHARED_MEMORY = Path("/dev/shm")

PYTHON_MODEL = """
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("nobody asks")
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """An entry of Brisk's, and one of the Python backend, whose regions are the server's, too."""
    write_entry(tmp_path / "repository", "doubled", doubled())
    version = tmp_path / "repository" / "python" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(PYTHON_MODEL)
    (version.parent / "config.pbtxt").write_text(
        'backend: "python" input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ] '
        'output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]'
    )
    return tmp_path / "repository"


class Served:
    """A ``brisk serve``."""

    def __init__(self, repository: Path, folder: Path, runtime: Path, log: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "brisk.cli", "serve", "--repository", str(repository)]
        command += [f"--http-port={self.port}", "--allow-grpc=false", "--allow-metrics=false"]
        environment = {
            **os.environ,
            "BRISK_CACHE_DIR": str(folder / "cache"),
            "BRISK_RUNTIME_DIR": str(runtime),
            "BRISK_ARTEFACTS": "off",
        }
        self.log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        self.prefix = f"brisk_server_{self.process.pid}_"

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return "Started HTTPService" in self.log.read_text()

    def regions(self) -> set[str]:
        return {name for name in os.listdir(SHARED_MEMORY) if name.startswith(self.prefix)}


@contextlib.contextmanager
def served(repository: Path, folder: Path, runtime: Path, log: str) -> Iterator[Served]:
    """Ready."""
    server = Served(repository, folder, runtime, folder / log)
    try:
        with TIMED:
            wait_until(server.is_ready, "a ready server", PATIENCE_S)
        yield server
    finally:
        server.process.terminate()
        server.process.wait(PATIENCE_S)
        for name in server.regions():
            (SHARED_MEMORY / name).unlink()


def kill_all(runtime: Path) -> None:
    """Server, stubs and runtime: none may see another one's end."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes_started_in(runtime):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
    with TIMED:
        wait_until(lambda: not processes_started_in(runtime), "their end", PATIENCE_S)


@pytest.fixture
def others(tmp_path: Path) -> Iterator[list[Path]]:
    """Regions that are not of a server that ``brisk serve`` became."""
    names = (
        f"triton_python_backend_shm_region_{tmp_path.name}",
        f"brisk_server_test_{tmp_path.name}",
        f"psm_{tmp_path.name}",
    )
    paths = [SHARED_MEMORY / name for name in names]
    for path in paths:
        path.write_bytes(b"\1" * 4096)
    yield paths
    for path in paths:
        path.unlink()


def test_the_next_serve_removes_what_a_killed_one_and_its_killed_stubs_have_left(
    repository: Path, tmp_path: Path, others: list[Path]
) -> None:
    with private_runtime() as runtime, served(repository, tmp_path, runtime, "first") as first:
        ours = first.regions()
        assert len(ours) == 2, "one of each instance"
        kill_all(runtime)
        first.process.wait(PATIENCE_S)
        assert first.regions() == ours, "nobody is left to remove them"
        with served(repository, tmp_path, runtime, "second") as second:
            assert first.regions() == set()
            assert "of servers that were killed" in second.log.read_text()
            assert len(second.regions()) == 2
            with served(repository, tmp_path, runtime, "third") as third:
                assert len(second.regions()) == 2, "its owner lives"
                assert len(third.regions()) == 2
            with InferenceClient(f"127.0.0.1:{second.port}", Transport.HTTP) as client:
                assert client.infer("doubled", {"x": ROW})["y"].tolist() == [[2.0] * 4]
        assert second.regions() == set(), "an orderly end leaves none"
    assert all(path.exists() for path in others)
