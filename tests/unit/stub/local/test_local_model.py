"""A model that its stub computes (``LocalModel``), with a program of one line."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from brisk.protocol.records import ComputedInStub, ComputeInStub, LoadModel
from brisk.runtime.preemption.gate import Gate
from brisk.stub.local import local_program
from brisk.stub.local.local_program import MOST_ROWS, LocalProgram
from brisk.telemetry.statistics import RequestAccount, Statistics
from support.waiting import wait_until

MODEL = LoadModel("mlp", 1, "/m.onnx", 0, False, 8, "normal")

ENTRY: Any = SimpleNamespace(outputs=("y",), ones={})


class Asked:
    """A request of Triton's for two rows."""

    def parameters(self) -> str:
        return ""

    time_out_us = 0

    def timeout(self) -> int:
        return self.time_out_us

    def inputs(self) -> list[Any]:
        return [SimpleNamespace(name=lambda: "x", as_numpy=lambda: np.ones((2, 4), np.float32))]


@dataclass
class Small:
    """A model that a stub computes: its runs, and what it tells the worker."""

    run: Callable[[np.ndarray], np.ndarray] = np.negative
    runs: int = 0
    told: list[ComputedInStub] = field(default_factory=list)
    made: Any = None
    gate: Gate = field(default_factory=Gate)
    in_flight: int = 0
    statistics: Statistics = field(default_factory=Statistics)

    def __post_init__(self) -> None:
        self.account = RequestAccount(self.statistics, MODEL.name, MODEL.version)

    def offer(self, threads: int = 1, *, batching: bool = True) -> None:
        """Begin as if the worker had offered the model, again."""
        if self.made is not None:
            self.made.close()
        module = importlib.import_module("brisk.stub.local.local_model")
        model = MODEL._replace(batching=batching)
        offer = ComputeInStub(1, "/prepared", 100_000 if threads == 1 else 5_000_000, threads)
        gate = os.dup(self.gate.descriptor)
        self.made = module.LocalModel(model, offer, gate, self.told.append, lambda: self.in_flight)

    def compute(self, outputs: Any, feeds: dict[str, np.ndarray], options: Any) -> list[Any]:
        self.runs += 1
        return [self.run(feeds["x"])]

    def answer(self, requests: int) -> list[Any] | None:
        answered: list[Any] | None = self.made.answer(
            [Asked() for _ in range(requests)], ENTRY, self.account
        )
        return answered


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Small]:
    utils = ModuleType("triton_python_backend_utils")
    utils.Tensor = lambda name, array: array  # type: ignore[attr-defined]
    utils.InferenceResponse = list  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, utils.__name__, utils)
    name = "brisk.stub.local.local_model"
    monkeypatch.setitem(sys.modules, name, utils)  # so that what is imported goes again
    monkeypatch.delitem(sys.modules, name)
    own = Small()
    type_ = SimpleNamespace(shape=(None, 4))
    plan = SimpleNamespace(outputs=[SimpleNamespace(type=type_)])
    program: Any = SimpleNamespace(plan=plan, segments=SimpleNamespace(current=list))

    def opened(model: LoadModel, prepared: str, threads: int) -> LocalProgram:
        return LocalProgram(threads, program, own.compute, MOST_ROWS)

    monkeypatch.setattr(local_program, "open_program", opened)
    own.offer()
    yield own
    own.made.close()


def test_joined_requests_whose_output_cannot_be_divided_are_computed_once_in_vain(
    small: Small,
) -> None:
    small.run = lambda x: x.sum(0)[:3]
    assert small.answer(2) is None
    assert small.answer(2) is None
    assert small.runs == 1
    assert small.answer(1) is not None, "one by itself is computed here"
    small.run = np.negative
    assert small.answer(2) is None


def test_the_worker_is_told_once_that_a_run_took_too_long(small: Small) -> None:
    assert small.answer(1) is not None
    small.made._programs.current.expect(1e5)  # the first run may have imported ONNX Runtime

    def hang(x: np.ndarray) -> np.ndarray:
        wait_until(lambda: small.made._guard.has_ended_it, "the guard")
        raise RuntimeError("terminated")

    small.run = hang
    assert small.answer(1) is None
    assert small.answer(1) is None
    assert [(each.answered, each.gives_up) for each in small.told] == [(1, True)]


def test_a_run_that_gets_no_processor_for_a_while_is_not_ended(small: Small) -> None:
    """As in a container whose quota of processor time is used up."""

    def stalled(x: np.ndarray) -> np.ndarray:
        time.sleep(0.3)  # six times TOO_LONG_NS
        return -x

    small.run = stalled
    assert small.answer(1) is not None
    assert not small.made._guard.has_ended_it
    assert not small.made.is_given_up


def test_a_run_that_computes_too_long_is_ended_before_it_counts_as_hanging(small: Small) -> None:
    def endless(x: np.ndarray) -> np.ndarray:
        while not small.made._guard.has_ended_it and time.thread_time() - begun_s < 30.0:
            x = -x
        raise RuntimeError("terminated")

    small.run, begun_s = endless, time.thread_time()
    assert small.answer(1) is None
    assert small.made.is_given_up
    assert time.thread_time() - begun_s < 0.9  # HANGS_NS


def test_a_stub_that_expected_too_much_computes_once_it_is_told_less(small: Small) -> None:
    """An offer's time of a row may come from runs during which others had the processors."""
    small.made.expect(100_000_000)
    assert [small.answer(1) for _ in range(100)] == 100 * [None]
    small.made.expect(100_000)
    assert small.answer(1) is not None


# Runs of some milliseconds, which real-time work elsewhere does not wait for.


def answer_long(small: Small, requests: int = 1) -> list[Any] | None:
    """Answer as if a row took 5 ms."""
    small.made.expect(5_000_000)
    return small.answer(requests)


def until_real_time_work_comes(small: Small) -> Callable[[np.ndarray], np.ndarray]:
    """A run during which real-time work comes, and which ONNX Runtime ends when it is told to."""

    def run(x: np.ndarray) -> np.ndarray:
        small.gate.close(1, None)
        wait_until(lambda: small.made._guard.has_given_way, "the guard")
        raise RuntimeError("terminated")

    return run


def test_a_long_run_gives_way_to_real_time_work_and_others_go_to_the_worker_for_a_while(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer_long(small) is not None
    small.run = until_real_time_work_comes(small)
    assert answer_long(small) is None
    assert not small.made.is_given_up
    small.gate.open()
    small.run = np.negative
    assert answer_long(small) is None, "real-time requests may come again"
    now_ns = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns + 2_000_000_000)
    assert answer_long(small) is not None
    assert not any(each.gives_up for each in small.told)
    counted = {sample.metric: sample.values for sample in small.statistics.samples()}
    assert counted["brisk_stub_runs_given_way_total"] == (1,)


def test_long_runs_stay_away_for_a_while_from_real_time_work_that_came_before_them(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.gate.close(1, None)
    assert answer_long(small) is None
    small.gate.open()
    assert answer_long(small) is None
    small.made.expect(100_000)
    assert small.answer(1) is not None, "it is short"
    now_ns = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns + 2_000_000_000)
    assert answer_long(small) is not None


def test_a_short_run_goes_on_beside_real_time_work(small: Small) -> None:
    assert answer_long(small) is not None
    small.made.expect(100_000)

    def run(x: np.ndarray) -> np.ndarray:
        small.gate.close(1, None)
        time.sleep(0.2)
        assert not small.made._guard.has_given_way
        return -x

    small.run = run
    assert small.answer(1) is not None
    small.gate.open()
    assert small.answer(1) is not None


def test_an_offer_after_one_whose_run_was_ended_is_computed(small: Small) -> None:
    """A thread's runs stay ended until it allows them again."""
    assert answer_long(small) is not None
    control = small.made._guard.control
    small.run = until_real_time_work_comes(small)
    assert answer_long(small) is None
    control.end()  # late, when nothing runs any more
    small.gate.open()
    small.run = np.negative
    small.offer()
    assert answer_long(small) is not None
    assert small.made._guard.control is control
    assert not control.has_ended


def test_a_first_batch_may_compute_longer_than_a_row(small: Small) -> None:
    def compute(x: np.ndarray) -> np.ndarray:
        begun_s = time.thread_time()
        while time.thread_time() - begun_s < 0.2:
            x = -x
        return x

    small.made.expect(20_000_000)
    small.run = compute
    assert small.answer(1) is not None, "two rows, expected to take 40 ms at most"
    assert not small.made.is_given_up


def test_requests_that_crowd_go_to_the_worker_unless_triton_joins_them(small: Small) -> None:
    small.offer(threads=2, batching=False)
    assert answer_long(small) is None, "it is sent on to find out"
    small.in_flight = 3
    assert [answer_long(small) for _ in range(20)] == 20 * [None]
    small.offer(threads=2)
    assert answer_long(small) is not None


def test_a_request_with_a_time_out_goes_to_the_worker_if_its_run_is_long(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Asked, "time_out_us", 1_000)
    assert small.answer(1) is not None
    assert answer_long(small) is None
    assert answer_long(small, requests=2) is None
    monkeypatch.setattr(Asked, "time_out_us", 0)
    assert answer_long(small, requests=2) is not None


def test_long_runs_stay_in_the_worker_where_nothing_can_wait_for_real_time_work(
    small: Small,
) -> None:
    small.made._gate.can_wait = False
    assert small.answer(1) is not None
    assert answer_long(small) is None
