"""The threads of a real server that ``brisk serve`` becomes, counted by the kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brisk.triton.instance_threads import FEW_THREADS, THREADS
from support.server.entries import doubled, write_entry
from support.server.serve_command import serving

pytestmark = pytest.mark.server

EXPLICIT = ("--model-control-mode=explicit",)

TRITONS = 32
"""The threads that Triton makes for an instance by itself."""


def threads_of_an_entry(folder: Path, repository: Path) -> float:
    """Return by how many threads the server grows for an entry of Brisk's."""
    with serving(folder, [repository], EXPLICIT) as served:
        tasks = Path(f"/proc/{served.process.pid}/task")
        served.load("first")
        before = len(os.listdir(tasks))
        for name in ("second", "third"):
            served.load(name)
            assert served.ask(name) == [2.0] * 8
        told = f"brisk: {FEW_THREADS} holds for Python models that are added later, too"
        assert (told in served.log_text) == (FEW_THREADS in served.options)
        return (len(os.listdir(tasks)) - before) / 2


def test_an_instance_has_few_threads_unless_the_repository_has_a_python_model(
    tmp_path: Path,
) -> None:
    repository = tmp_path / "repository"
    for name in ("first", "second", "third"):
        write_entry(repository, name, doubled())
    assert THREADS <= threads_of_an_entry(tmp_path, repository) < TRITONS / 2
    theirs = repository / "theirs" / "1" / "model.py"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    assert threads_of_an_entry(tmp_path, repository) >= TRITONS
