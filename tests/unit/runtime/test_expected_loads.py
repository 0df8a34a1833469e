"""Loads that begin before they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from brisk.errors import InternalError
from brisk.frontend.expecting import tell
from brisk.runtime.loader import LoadOutcome
from brisk.runtime.sessions import SessionTable
from brisk.wire.place import RuntimePlace
from brisk.wire.records import Expect, LoadModel, Region
from unit.runtime.runtime_process import describe, infer, opened

MARK = Region(0, 0, 64)


class Loads:
    """Stands for the load lane: notes what it is asked for."""

    def __init__(self) -> None:
        self.paths: list[Path] = []

    def load(
        self, ticket: int, path: Path, asker: LoadModel, begin: Callable[[], None], back: bool
    ) -> int:
        assert not back
        self.paths.append(path)
        return ticket

    def hurry(self, number: int, job_class: str) -> None:
        pass

    def give_memory_back(self) -> None:
        pass


class Session:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class Peers:
    """A table of sessions and peers that use it."""

    def __init__(self, path: Path) -> None:
        self.loads = Loads()
        self.table = SessionTable(self.loads, None)  # type: ignore[arg-type]
        self.known: dict[int, Any] = {}
        self.path = path
        self.session: Any = Session()
        self.expectation = Expect(path.stem, 1, str(path))

    def peer(self, number: int) -> Any:
        view = SimpleNamespace(memory=lambda region: memoryview(bytearray(region.size)))
        return self.known.setdefault(number, SimpleNamespace(number=number, view=view))

    def bind(self, number: int, job_class: str = "normal") -> Any:
        model = LoadModel(0, "net", 1, str(self.path), MARK, 0, False, 9, job_class)
        return self.table.bind(self.peer(number), model)


@pytest.fixture
def peers(quick: Path) -> Peers:
    return Peers(quick)


def test_an_expected_model_is_loaded_once_and_told_to_the_first_who_asks(peers: Peers) -> None:
    peers.table.expect(peers.peer(1), peers.expectation)
    assert peers.table.settle(LoadOutcome(1, peers.session, None)) == []
    first, second = peers.bind(2), peers.bind(3)
    assert first.session is second.session is peers.session
    assert [peers.table.claim(first), peers.table.claim(second)] == [True, False]
    assert peers.loads.paths == [peers.path]
    peers.table.release_all(peers.peer(1))
    peers.table.release_all(peers.peer(2))
    assert not peers.session.closed
    peers.table.release_all(peers.peer(3))
    assert peers.session.closed == 1
    assert not len(peers.table)


def test_who_asks_while_it_loads_waits_for_the_same_load(peers: Peers) -> None:
    peers.table.expect(peers.peer(1), peers.expectation)
    binding = peers.bind(2)
    assert binding.session is None
    assert peers.table.settle(LoadOutcome(1, peers.session, None)) == [binding]
    assert not peers.table.claim(binding), "it has been told by the settlement"
    assert peers.loads.paths == [peers.path]


@pytest.mark.parametrize("ends_first", [True, False])
def test_a_session_that_is_expected_no_more_is_given_up(peers: Peers, ends_first: bool) -> None:
    peers.table.expect(peers.peer(1), peers.expectation)
    outcome = LoadOutcome(1, peers.session, None)
    if ends_first:
        peers.table.settle(outcome)
        peers.table.release_all(peers.peer(1))
    else:
        peers.table.release_all(peers.peer(1))
        peers.table.settle(outcome)
    assert peers.session.closed == 1
    assert not len(peers.table)


def test_a_load_that_failed_ahead_is_tried_again_by_who_asks(peers: Peers) -> None:
    peers.table.expect(peers.peer(1), peers.expectation)
    assert peers.table.settle(LoadOutcome(1, None, InternalError("broken"))) == []
    assert peers.bind(2).session is None
    assert peers.loads.paths == [peers.path, peers.path]
    peers.table.release_all(peers.peer(1))
    assert len(peers.table) == 1


def test_nothing_is_loaded_ahead_beside_a_real_time_model(peers: Peers, tmp_path: Path) -> None:
    served = peers.bind(1, "realtime")
    peers.table.settle(LoadOutcome(1, peers.session, None))
    assert served.session is not None
    other = tmp_path / "other.onnx"
    other.write_bytes(peers.path.read_bytes())
    peers.table.expect(peers.peer(2), Expect("other", 1, str(other)))
    assert peers.loads.paths == [peers.path]


def test_a_runtime_takes_an_expectation_and_serves_the_model(
    shared_place: RuntimePlace, quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(shared_place.base))
    missing = tell(Expect("none", 1, "/nonexistent/model.onnx"))
    with tell(Expect("quick", 1, str(quick))), opened(shared_place, describe(quick)) as asker:
        value = np.ones((2, 4), np.float32)
        np.testing.assert_array_equal(infer(asker, value), -value)
    missing.close()
