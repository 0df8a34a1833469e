"""Shared memory that a server and its stubs leave when all of them are killed at once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.runtime.runtime_processes import processes_started_in
from support.server.entries import doubled, write_entry
from support.server.running import private_runtime
from support.server.serve_command import ServeCommand, serving
from support.waiting import PATIENCE_S, TIMED, wait_until

# Not beside other files: any ``brisk serve`` removes what killed servers have left.
pytestmark = [pytest.mark.server, pytest.mark.timing]

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


def served(
    repository: Path, folder: Path, runtime: Path, name: str
) -> contextlib.AbstractContextManager[ServeCommand]:
    """A ``brisk serve`` with this runtime directory."""
    (folder / name).mkdir()
    places = {"BRISK_RUNTIME_DIR": str(runtime), "BRISK_CACHE_DIR": str(folder / "cache")}
    return serving(folder / name, [repository], environment=places)


def regions(server: ServeCommand) -> set[str]:
    prefix = f"brisk_server_{server.process.pid}_"
    return {name for name in os.listdir(SHARED_MEMORY) if name.startswith(prefix)}


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
        ours = regions(first)
        assert len(ours) == 2, "one of each instance"
        kill_all(runtime)
        first.process.wait(PATIENCE_S)
        assert regions(first) == ours, "nobody is left to remove them"
        with served(repository, tmp_path, runtime, "second") as second:
            assert regions(first) == set()
            assert "of servers that were killed" in second.log_text
            assert len(regions(second)) == 2
            with served(repository, tmp_path, runtime, "third") as third:
                assert len(regions(second)) == 2, "its owner lives"
                assert len(regions(third)) == 2
            assert second.ask("doubled", 1) == [2.0] * 4
        assert regions(second) == set(), "an orderly end leaves none"
    assert all(path.exists() for path in others)
