"""A model whose exchange ends workers stays as it started, and is tried anew once changed."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from brisk.protocol.runtime_paths import Role
from brisk.runtime.heartbeat import Heartbeat, StallWatch
from brisk.runtime.sessions import segment_session
from brisk.runtime.sessions.attempts import (
    ATTEMPTS,
    MOST_DEATHS,
    end_attempts,
    exchange_attempt,
    new_page,
)
from brisk.runtime.sessions.segment_session import load_segment_session
from brisk.runtime.supervisor import WORKER_ENDED_IDLE, WorkerSlot, supervise
from brisk.segments.prepared.preparation import prepare
from brisk.tuning import SessionTuning
from support.models.segment_models import scaling


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "model.onnx"
    path.write_bytes(b"model")
    return path


def live(*lives: Callable[[], object], stall: StallWatch | None = None) -> None:
    """Supervise workers, each with one of ``lives``; one that only returns ends idle."""
    begun = new_page()
    page = new_page()

    def work(listeners: Sequence[socket.socket]) -> int:
        ATTEMPTS.page = page
        begun[0] += 1
        for life in lives[begun[0] - 1 : begun[0]]:
            life()
        return WORKER_ENDED_IDLE

    def note(has_died: bool) -> None:
        end_attempts(page, has_died=has_died)

    supervise([WorkerSlot(Role.FOREGROUND, (), work, note, stall)])


def during_an_attempt(model: Path, end: Callable[[], object]) -> Callable[[], None]:
    """The life of a worker that ends during an attempt, if it may be tried."""

    def life() -> None:
        with exchange_attempt(model) as may_be_tried:
            if may_be_tried:
                end()

    return life


def crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def may_be_tried(model: Path, most_deaths: int = 1) -> bool:
    with exchange_attempt(model, most_deaths=most_deaths) as answer:
        return answer


def test_it_is_given_up_after_some_deaths_until_the_model_changes(model: Path) -> None:
    crashing = during_an_attempt(model, crash)
    live(*[crashing] * MOST_DEATHS)
    assert not may_be_tried(model, MOST_DEATHS)
    live(crashing)  # ends idle: it is not tried
    os.utime(model, ns=(1, 1))
    assert may_be_tried(model)


def test_an_attempt_that_ends_forgets_the_deaths_before_it(model: Path) -> None:
    live(during_an_attempt(model, crash))
    assert not may_be_tried(model)
    with pytest.raises(RuntimeError), exchange_attempt(model):
        raise RuntimeError
    assert may_be_tried(model)


def test_sessions_on_one_thread_are_given_up_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take memory, and where that is too much, requests that crowd would end each worker."""
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    path = scaling(tmp_path / "model.onnx")
    prepare(path, 2)
    session = load_segment_session(path, 2, print, None)
    with monkeypatch.context() as patched:
        patched.setattr(segment_session, "open_warm_program", lambda source: crash())
        live(*[session.open_narrow] * MOST_DEATHS)
    assert may_be_tried(path), "its other sessions are another exchange"
    monkeypatch.setattr(segment_session, "open_warm_program", lambda source: pytest.fail("tried"))
    assert session.open_narrow() is None


def test_attempts_that_others_have_under_way_do_not_count(model: Path) -> None:
    with exchange_attempt(model) as first, exchange_attempt(model) as second:
        assert first
        assert second
        assert may_be_tried(model)
        seen = new_page()
        live(lambda: seen.write(b"yes" if may_be_tried(model) else b"no"))
        assert seen[:3] == b"yes"


def test_every_attempt_under_way_counts_when_the_worker_dies(model: Path) -> None:
    other = model.with_name("other.onnx")
    other.write_bytes(b"other")

    def life() -> None:
        with exchange_attempt(model), exchange_attempt(other):
            crash()

    live(life)
    assert not may_be_tried(model)
    assert not may_be_tried(other)


@pytest.mark.parametrize(
    "end",
    [
        lambda: os._exit(WORKER_ENDED_IDLE),
        lambda: os.kill(os.getpid(), signal.SIGTERM),
        lambda: (ATTEMPTS.forget(), crash()),
    ],
    ids=["idle", "stopped", "on purpose"],
)
def test_a_worker_that_is_ended_during_an_attempt_does_not_count(
    model: Path, end: Callable[[], object]
) -> None:
    live(*[during_an_attempt(model, end)] * MOST_DEATHS)
    assert may_be_tried(model)


def test_a_worker_that_its_supervisor_ends_does_not_count(model: Path) -> None:
    stall = StallWatch(heartbeat := Heartbeat(), patience_s=0.2)

    def hang() -> None:
        heartbeat.beat(peers=1)
        time.sleep(60)

    began_s = time.monotonic()
    live(during_an_attempt(model, hang), stall=stall)
    assert time.monotonic() - began_s < 30
    assert may_be_tried(model)


def test_a_stop_of_the_supervisor_during_an_attempt_does_not_count(model: Path) -> None:
    def stop() -> None:
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(60)

    live(during_an_attempt(model, stop))
    assert may_be_tried(model)


def test_a_worker_that_ends_for_one_model_counts_for_it_alone(model: Path) -> None:
    other = model.with_name("other.onnx")
    other.write_bytes(b"other")

    def life() -> None:
        with exchange_attempt(model), exchange_attempt(other):
            ATTEMPTS.forget(but_of=model)
            crash()

    live(life)
    assert not may_be_tried(model)
    assert may_be_tried(other)


def test_entries_with_other_settings_have_deaths_of_their_own(model: Path) -> None:
    live(during_an_attempt(model, crash))
    with exchange_attempt(model, SessionTuning(intra_op_threads=3), most_deaths=1) as answer:
        assert answer
    assert not may_be_tried(model)


def test_more_attempts_than_a_page_lists_are_tried_all_the_same(model: Path) -> None:
    def attempt(depth: int) -> None:
        with exchange_attempt(model) as answer:
            assert answer
            if depth:
                attempt(depth - 1)

    attempt(300)
    assert not any(ATTEMPTS.page[:])


def test_where_nothing_can_be_written_it_is_tried(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", "/proc/nowhere")
    live(during_an_attempt(model, crash))
    assert may_be_tried(model)
