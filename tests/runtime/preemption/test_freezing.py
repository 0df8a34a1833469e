"""Best-effort segments stopped half-way for real-time runs, and what becomes of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from brisk.errors import CancelledError
from brisk.protocol.runtime_paths import RuntimePaths
from brisk.runtime.preemption.suspension import Suspension
from brisk.runtime.worker.long_runs import LAST_RESORT_NS
from brisk.stub.runtime_client.client import RuntimeClient
from support.models.segment_models import info, save
from support.open_files import no_descriptor_left
from support.runtime.gates import LAZY, Pair, job, run_of
from support.runtime.requests import ASession
from support.runtime.runtime_process import (
    SLOW_INPUT,
    Answer,
    describe,
    kill,
    opened,
    slow_model,
    submit,
)
from support.runtime.runtime_processes import processor_s, state_of
from support.runtime.two_workers import await_best_effort, background, foreground_worker_of
from support.waiting import wait_until

WIDTH = 2400
"""Of the factors of one product, which takes a quarter of a second on one thread."""


# --- the foreground worker's half, with a process that only waits --------------------------------


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Whose gate names a child that waits for ever."""
    made = Pair("preemptive")
    child = os.fork()
    if not child:
        made.gate.enter()
        while True:
            signal.pause()
    wait_until(lambda: made.gate.page.process == child, "the child")
    yield made
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def stopped(pair: Pair) -> bool:
    return state_of(pair.gate.page.process) == "T"


def test_a_segment_is_stopped_from_the_first_run_to_the_last_answer(pair: Pair) -> None:
    pair.background.holds(LAZY, 0)
    first, second = job(1), job(2)
    for one in (first, second):
        pair.foreground.admitted(one)
        assert not stopped(pair), "nothing computes yet"
    for one in (first, second):
        pair.foreground.begins(run_of(one), 1)
        wait_until(lambda: stopped(pair), "the stop")
        pair.foreground.ended(one)
    wait_until(lambda: not stopped(pair), "the end of the stop")


def test_nothing_is_stopped_where_no_segment_runs(pair: Pair) -> None:
    one = job(1)
    pair.foreground.admitted(one)
    assert pair.background.holds(LAZY, 0)
    pair.foreground.begins(run_of(one), 1)
    assert pair.foreground.suspension.since_ns is None


def test_no_run_that_may_wait_for_a_load_stops_a_segment(pair: Pair) -> None:
    pair.background.holds(LAZY, 0)
    for number, is_loading in enumerate((False, True)):
        one = job(number)
        pair.foreground.admitted(one)
        pair.foreground.begins(run_of(one, session=ASession(is_loading=is_loading)), 1)
        assert (pair.foreground.suspension.since_ns is None) == is_loading


def test_what_has_been_stopped_for_long_goes_on_beside_one_run(pair: Pair) -> None:
    pair.background.holds(LAZY, 0)
    found = []
    for number in range(30):
        one = job(number)
        pair.foreground.admitted(one)
        pair.foreground.begins(run_of(one), number * 20_000_000)
        found.append(pair.foreground.suspension.since_ns is None)
    assert not any(found[:6])
    assert [place for place, is_free in enumerate(found) if is_free] == [6, 13, 20, 27]


def test_a_segment_goes_on_beside_a_run_where_it_might_begin() -> None:
    pair = Pair("deadline")
    pair.gate.begin_segment()
    pair.gate.expect_end(1_000)
    for deadline_ns, may_begin in ((None, False), (1_000, False), (9_000, True)):
        pair.gate.close(1, deadline_ns)
        assert pair.foreground.admits_segments(0) is may_begin


@pytest.mark.parametrize("policy", ["shared", "sequential"])
def test_policies_that_hold_nothing_stop_nothing(policy: str) -> None:
    pair = Pair(policy)
    pair.gate.close(1, None)
    assert pair.foreground.admits_segments(0)


def test_a_process_that_has_gone_and_its_successor(pair: Pair) -> None:
    gate, suspension = pair.gate, Suspension(pair.gate)
    for turn in range(2):
        child = os.fork()
        if not child:
            gate.enter()
            while True:
                signal.pause()
        wait_until(lambda child=child: gate.page.process == child, "the child")
        suspension.suspend(turn)
        assert suspension.since_ns == turn
        wait_until(lambda child=child: state_of(child) == "T", "the stop")
        os.kill(child, signal.SIGKILL)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        suspension.resume()
        os.waitpid(child, 0)
        suspension.suspend(turn)
        assert suspension.since_ns is None, "nobody is there"
    gate.leave()
    suspension.suspend(3)
    gate.resume_worker()
    assert suspension.since_ns is None


def test_a_kernel_that_refuses_is_told_of_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(process: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    suspension = Suspension(pair.gate)
    for _ in range(3):
        suspension.suspend(0)
        suspension.resume()
    assert suspension.since_ns is None
    (text,) = caplog.messages
    assert "Operation not permitted" in text


def test_a_lack_of_descriptors_is_no_refusal(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    suspension = Suspension(pair.gate)
    with no_descriptor_left():
        suspension.suspend(0)
    assert suspension.since_ns is None
    suspension.suspend(1)
    assert suspension.since_ns == 1
    wait_until(lambda: stopped(pair), "the stop")
    suspension.resume()
    assert not caplog.messages


# --- real workers --------------------------------------------------------------------------------


def one_long_segment(path: Path) -> Path:
    """y = x x, of which nothing can be left out."""
    nodes = [helper.make_node("MatMul", ["x", "x"], ["y"])]
    return save(path, nodes, [info("x", WIDTH, WIDTH)], [info("y", WIDTH, WIDTH)])


ROWS = np.random.default_rng(0).standard_normal((WIDTH, WIDTH), np.float32)


class Staged:
    """A best-effort segment that has just begun in a runtime of its own, and a real-time model."""

    def __init__(self, urgent: RuntimeClient, lazy: RuntimeClient, place: RuntimePaths) -> None:
        self.place = place
        self.urgent = urgent
        submit(urgent, SLOW_INPUT, "realtime")[1].output()
        await_best_effort(place, submit(lazy, ROWS, "besteffort")[1]).output()
        self.lazy = lazy
        self.number, self.answer = submit(lazy, ROWS, "besteffort")
        self.worker = background(place)
        before_s = processor_s(self.worker)
        wait_until(lambda: processor_s(self.worker) > before_s + 0.05, "the segment to begin")

    def ask(self) -> Answer:
        """A real-time request of half a second, which stops the segment."""
        urgent = submit(self.urgent, SLOW_INPUT, "realtime")[1]
        wait_until(lambda: state_of(self.worker) == "T" or urgent.has_come, "the stop")
        assert state_of(self.worker) == "T"
        return urgent


@pytest.fixture
def staged(
    place: RuntimePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Staged]:
    monkeypatch.setenv("BRISK_POLICY", "preemptive")
    long = one_long_segment(tmp_path / "long.onnx")
    with (
        opened(place, describe(slow_model(tmp_path / "urgent.onnx", steps=200))) as urgent,
        opened(place, describe(long, job_class="besteffort")) as lazy,
    ):
        yield Staged(urgent, lazy, place)


def test_a_stopped_segment_takes_no_time_and_goes_on_where_it_was(staged: Staged) -> None:
    urgent = staged.ask()
    taken_s = processor_s(staged.worker)
    time.sleep(0.1)
    assert state_of(staged.worker) == "T"
    assert not urgent.has_come
    assert processor_s(staged.worker) <= taken_s + 0.02
    urgent.output()
    wait_until(lambda: state_of(staged.worker) != "T", "the end of the stop")
    np.testing.assert_allclose(staged.answer.output(), ROWS @ ROWS, rtol=1e-3, atol=1e-2)


def test_a_foreground_worker_that_dies_leaves_nothing_stopped(staged: Staged) -> None:
    urgent = staged.ask()
    kill(foreground_worker_of(staged.place))
    staged.answer.output()
    urgent.output()
    assert background(staged.place) == staged.worker


def test_a_stopped_worker_that_dies_is_replaced_at_once(staged: Staged) -> None:
    urgent = staged.ask()
    kill(staged.worker)
    urgent.output()
    answer = await_best_effort(staged.place, staged.answer)
    np.testing.assert_allclose(answer.output(), ROWS @ ROWS, rtol=1e-3, atol=1e-2)
    assert background(staged.place) != staged.worker


def test_a_cancelled_segment_that_is_stopped_ends_without_its_worker(staged: Staged) -> None:
    """It needs a processor to find out that it is to end."""
    staged.lazy.cancel(staged.number)
    assert isinstance(staged.answer.wait().error, CancelledError)
    os.kill(staged.worker, signal.SIGSTOP)
    time.sleep(1.5 * LAST_RESORT_NS / 1e9)
    os.kill(staged.worker, signal.SIGCONT)
    answer = await_best_effort(staged.place, submit(staged.lazy, ROWS, "besteffort")[1])
    np.testing.assert_allclose(answer.output(), ROWS @ ROWS, rtol=1e-3, atol=1e-2)
    assert background(staged.place) == staged.worker
