"""A worker's offer to compute a model in the stub is taken up once, and may be taken back."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import ModuleType

import pytest

from brisk.errors import UnavailableError
from brisk.protocol.records import ComputedInStub, ComputeInStub, LoadModel
from brisk.stub.local.offered_model import OfferedModel
from brisk.stub.runtime_client.worker_connection import Offer
from support.open_files import no_thread_left
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


def test_an_offer_that_no_thread_is_left_for_is_declined_and_the_next_is_not(
    offered: OfferedModel, opening: type[Opening], logged: list[str]
) -> None:
    """An exception would end the connection that the offer came by."""
    offer = an_offer()
    with no_thread_left():
        offered.take(offer)
    assert not is_open(offer.gate)
    assert logged == ["model 'mlp' stays in the worker: can't start new thread"]
    opening.may_go_on.set()
    offered.take(an_offer())
    wait_until(lambda: offered.local is not None, "the model")


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
