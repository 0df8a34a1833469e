"""A worker's offer to compute a model in the stub is taken up once, and may be taken back; what
the stub does not compute any more.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from brisk.errors import UnavailableError
from brisk.protocol.records import ComputedInStub, ComputeInStub, LoadModel
from brisk.runtime.preemption.gate import Gate
from brisk.stub.local import local_program
from brisk.stub.local.local_program import MOST_ROWS, LocalProgram
from brisk.stub.local.offered_model import OfferedModel
from brisk.stub.runtime_client.worker_connection import Offer
from brisk.telemetry.statistics import RequestAccount, Statistics
from support.waiting import PATIENCE_S, wait_until

MODEL = LoadModel("mlp", 1, "/m.onnx", 0, False, 8, "normal")


class Opening:
    """A stand-in for ``LocalModel``: it waits until it ``may_go_on``; ``refused``: it fails."""

    may_go_on: threading.Event
    refused: bool
    made: list[Opening]

    def __init__(
        self,
        model: LoadModel,
        offer: ComputeInStub,
        gate: int,
        tell: Callable[[ComputedInStub], None],
        in_flight: Callable[[], int],
    ) -> None:
        os.close(gate)
        assert self.may_go_on.wait(PATIENCE_S)
        if self.refused:
            raise UnavailableError("no such form")
        self.is_closed = self.is_given_up = False
        self.made.append(self)

    def expect(self, row_ns: int) -> None:
        self.expected_ns = row_ns

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def opening(monkeypatch: pytest.MonkeyPatch) -> type[Opening]:
    Opening.may_go_on, Opening.refused, Opening.made = threading.Event(), False, []
    module = ModuleType("brisk.stub.local.local_model")
    module.LocalModel = Opening  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Opening


@pytest.fixture
def logged() -> list[str]:
    return []


@pytest.fixture
def offered(logged: list[str]) -> OfferedModel:
    return OfferedModel(
        MODEL, lambda record: None, lambda level, text: logged.append(text), lambda: 0
    )


def an_offer(row_ns: int = 100_000) -> Offer:
    return Offer(ComputeInStub(1, "/prepared", row_ns, 1), os.open(os.devnull, os.O_RDONLY))


def is_open(descriptor: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{descriptor}")


def test_of_a_second_offer_only_the_time_of_a_row_is_taken_while_the_first_one_stands(
    offered: OfferedModel, opening: type[Opening]
) -> None:
    offered.take(an_offer())
    opening.may_go_on.set()
    wait_until(lambda: offered.local is not None, "the model")
    assert opening.made[0].expected_ns == 100_000
    second = an_offer(row_ns=1_000)
    offered.take(second)
    assert not is_open(second.gate)
    assert len(opening.made) == 1
    assert opening.made[0].expected_ns == 1_000


def test_an_offer_that_comes_while_the_model_is_opened_says_what_to_expect(
    offered: OfferedModel, opening: type[Opening]
) -> None:
    offered.take(an_offer())
    offered.take(an_offer(row_ns=1_000))
    opening.may_go_on.set()
    wait_until(lambda: offered.local is not None, "the model")
    assert opening.made[0].expected_ns == 1_000


def test_a_model_that_is_taken_back_while_it_is_opened_is_not_computed_here(
    offered: OfferedModel, opening: type[Opening]
) -> None:
    offered.take(an_offer())
    offered.take(None)
    opening.may_go_on.set()
    wait_until(lambda: bool(opening.made) and opening.made[0].is_closed, "its end")
    assert offered.local is None


def test_what_cannot_be_opened_stays_in_the_worker_until_it_is_offered_again(
    offered: OfferedModel, opening: type[Opening], logged: list[str]
) -> None:
    opening.refused = True
    opening.may_go_on.set()
    offered.take(an_offer())
    wait_until(lambda: bool(logged), "the reason")
    assert logged == ["model 'mlp' stays in the worker: no such form"]
    opening.refused = False

    def is_taken_up() -> bool:
        offered.take(an_offer())
        return offered.local is not None

    wait_until(is_taken_up, "the model")


def test_what_a_stub_has_given_up_is_not_taken_up_again(
    offered: OfferedModel, opening: type[Opening]
) -> None:
    opening.may_go_on.set()
    offered.take(an_offer())
    wait_until(lambda: offered.local is not None, "the model")
    opening.made[0].is_given_up = True
    offered.take(None)
    assert opening.made[0].is_closed
    again = an_offer()
    offered.take(again)
    assert not is_open(again.gate)
    assert offered.local is None


# A model that the stub computes (``LocalModel``), with a program of one line.

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
    monkeypatch.delitem(sys.modules, "brisk.stub.local.local_model")
    module = importlib.import_module("brisk.stub.local.local_model")
    own = Small()
    type_ = SimpleNamespace(shape=(None, 4))
    plan = SimpleNamespace(outputs=[SimpleNamespace(type=type_)])
    program: Any = SimpleNamespace(plan=plan, segments=SimpleNamespace(current=list))

    def opened(model: LoadModel, prepared: str, threads: int) -> LocalProgram:
        return LocalProgram(threads, program, own.compute, MOST_ROWS)

    monkeypatch.setattr(local_program, "open_program", opened)
    gate = os.dup(own.gate.descriptor)
    model, offer = MODEL._replace(batching=True), ComputeInStub(1, "/prepared", 100_000, 1)
    own.made = module.LocalModel(model, offer, gate, own.told.append, lambda: own.in_flight)
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
    def run(x: np.ndarray) -> np.ndarray:
        small.gate.close(1, None)
        time.sleep(0.2)
        assert not small.made._guard.has_given_way
        return -x

    small.run = run
    assert small.answer(1) is not None
    small.gate.open()
    assert small.answer(1) is not None


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
