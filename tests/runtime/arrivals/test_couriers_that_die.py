"""What waits for the courier while it dies asks the next one."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from brisk.copies import connection
from brisk.copies.connection import CourierEndedError, asked_again, resolve
from brisk.copies.courier import Courier, fetch
from brisk.copies.local import copy_of
from brisk.runtime.arrivals.asking import CopyRequester
from support.models.segment_models import chain
from support.remote.entries import end_courier, publish_here
from support.remote.registries import RegistryServer
from support.waiting import PATIENCE_S, wait_until

Result = TypeVar("Result")


@contextmanager
def begun(ask: Callable[[], Result]) -> Iterator[Future[Result]]:
    """Yield the result of what is asked in another thread."""
    with ThreadPoolExecutor(1) as executor:
        yield executor.submit(ask)


def states() -> list[object]:
    with Courier() as courier:
        return [each["state"] for each in courier.status()]


@pytest.fixture
def remote(registry: RegistryServer, tmp_path: Path) -> Path:
    return publish_here(registry, chain(tmp_path / "model.onnx", layers=2))


def test_an_entry_is_opened_though_the_courier_dies_meanwhile(
    registry: RegistryServer, remote: Path
) -> None:
    registry.hold("/m/manifest.json")
    called: list[int] = []
    with begun(lambda: resolve(remote, lambda: called.append(1))) as opening:
        wait_until(lambda: states() == ["opening"], "the opening")
        end_courier()
        registry.let_go()
        assert copy_of(opening.result(PATIENCE_S)).has_head
    assert called == [1]


def test_a_copy_is_fetched_though_the_courier_dies_meanwhile(
    registry: RegistryServer, remote: Path, tmp_path: Path
) -> None:
    registry.hold("/m/model.onnx", 1 << 20)
    with begun(lambda: fetch(remote)) as fetching:
        wait_until(lambda: bool(registry.sent["/m/model.onnx"]), "some bytes")
        end_courier()
        registry.let_go()
        content = fetching.result(PATIENCE_S).read_bytes()
    assert content == (tmp_path / "model.onnx").read_bytes()


def test_a_start_connects_and_takes_a_form_though_the_courier_dies_meanwhile(
    registry: RegistryServer, remote: Path
) -> None:
    """One that is stopped accepts connections and answers nothing."""
    registry.hold("/m/model.onnx", 1 << 20)
    copy = copy_of(resolve(remote))
    assert copy is not None
    requester = CopyRequester(copy)
    asks: list[Callable[[], object]] = [
        requester.connect,
        lambda: requester.take("none.segments", is_begun=False),
    ]
    for ask in asks:
        end_courier(signal.SIGSTOP)
        with begun(ask) as asking:
            time.sleep(0.3)
            assert not asking.done()
            end_courier()
            asking.result(PATIENCE_S)
    assert states() == ["fetching"]
    requester.close()


def test_couriers_that_all_die_are_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def ask() -> None:
        asked.append(1)
        raise CourierEndedError("the courier has ended")

    monkeypatch.setattr(connection, "MOST_TRIES", 2)
    with pytest.raises(CourierEndedError):
        asked_again(ask)
    assert len(asked) == 2
