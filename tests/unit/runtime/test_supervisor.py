"""Workers that end are noticed, with the kernel's descriptors of processes and without."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from brisk.protocol.runtime_paths import Role
from brisk.runtime import supervisor
from brisk.runtime.heartbeat import Heartbeat, StallWatch
from brisk.runtime.supervisor import WORKER_ENDED_IDLE, WorkerSlot, supervise
from support.open_files import no_descriptor_left


@pytest.mark.parametrize("has_descriptors", [True, False])
def test_a_worker_that_dies_is_replaced_until_one_ends_idle(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    has_descriptors: bool,
) -> None:
    lives = tmp_path / "lives"
    lives.touch()
    died: list[int] = []

    def work(listeners: Sequence[socket.socket]) -> int:
        with lives.open("a") as file:
            file.write("x")
        return WORKER_ENDED_IDLE if lives.stat().st_size == 3 else 7

    def refuse(process: int) -> int:
        raise OSError(38, "Function not implemented")

    if not has_descriptors:
        monkeypatch.setattr(os, "pidfd_open", refuse)

    def note(has_died: bool) -> None:
        assert has_died == (lives.stat().st_size < 3)
        assert Path(f"/proc/{slot.process}").exists(), "its number might be another's by now"
        died.append(slot.process)

    slot = WorkerSlot(Role.FOREGROUND, (), work, note)
    supervise([slot])
    assert lives.read_text() == "xxx"
    assert len(set(died)) == 3
    assert slot.handle is None
    assert caplog.text.count("exit status 7") == 2


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGKILL, "died (SIGKILL)"), (signal.SIGRTMIN + 5, "died (signal 39)")],
    ids=["named", "without a name"],
)
def test_a_worker_that_a_signal_ends_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int, words: str
) -> None:
    died = tmp_path / "died"

    def work(listeners: Sequence[socket.socket]) -> int:
        if not died.exists():
            died.touch()
            os.kill(os.getpid(), number)
        return WORKER_ENDED_IDLE

    supervise([WorkerSlot(Role.FOREGROUND, (), work, lambda died: None)])
    assert words in caplog.text


def test_a_worker_that_cannot_be_forked_now_is_forked_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "FORK_PAUSE_S", 0.05)
    fork = os.fork
    attempts: list[int] = []

    def fork_the_third_time() -> int:
        attempts.append(len(attempts))
        if len(attempts) < 3:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", fork_the_third_time)
    slot = WorkerSlot(Role.FOREGROUND, (), lambda listeners: WORKER_ENDED_IDLE, lambda died: None)
    supervise([slot])
    assert len(attempts) == 3
    assert caplog.text.count("cannot be started now") == 2


def test_a_look_at_a_worker_without_a_descriptor_ends_nobody() -> None:
    """The system as a whole may have none left."""

    def work(listeners: Sequence[socket.socket]) -> int:
        signal.pause()
        return WORKER_ENDED_IDLE

    watch = StallWatch(Heartbeat(), 10.0)
    slot = WorkerSlot(Role.FOREGROUND, (), work, lambda died: None, watch)
    slot.fork([slot])
    try:
        with no_descriptor_left():
            slot.end_if_stalled()
        assert os.waitid(os.P_PID, slot.process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    finally:
        slot.end()


def test_the_watch_begins_anew_with_each_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that never beats is ended, and the next one has all of the patience again."""
    lives = tmp_path / "lives"
    lives.touch()
    began: list[int] = []

    def work(listeners: Sequence[socket.socket]) -> int:
        with lives.open("a") as file:
            file.write("x")
        return WORKER_ENDED_IDLE if lives.stat().st_size == 2 else 7

    watch = StallWatch(Heartbeat(), 10.0)
    monkeypatch.setattr(watch, "begin", lambda: began.append(lives.stat().st_size))
    supervise([WorkerSlot(Role.FOREGROUND, (), work, lambda died: None, watch)])
    assert began == [0, 1]
