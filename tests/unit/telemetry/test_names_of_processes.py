"""Processes of the machine are looked through whatever their names are: the kernel cuts a name
after 15 bytes, also within a character."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from brisk.protocol.stub_process import parent_of
from brisk.telemetry.observer import _has_background
from brisk.triton.launch import _group_lives
from support.waiting import wait_until


@pytest.fixture
def cut_name(tmp_path: Path) -> Iterator[int]:
    """The number of a process, which leads a group, whose name is no UTF-8 text."""
    program = tmp_path / "обработчик"  # 20 bytes
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    process = subprocess.Popen([program, "60"], start_new_session=True)
    comm = Path(f"/proc/{process.pid}/comm")
    wait_until(lambda: comm.read_bytes() == program.name.encode()[:15] + b"\n", "its name")
    yield process.pid
    process.kill()
    process.wait()


def test_a_worker_is_looked_for_beside_it(cut_name: int) -> None:
    assert not _has_background(os.getpid())
    assert parent_of(cut_name) == os.getpid()


def test_it_is_found_by_its_group(cut_name: int) -> None:
    assert _group_lives(cut_name)
