"""Loads that take too long are given up; what goes on for nobody is found."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brisk.errors import InvalidModelError
from brisk.exits.files.learning_record import Aim
from brisk.runtime.early_exit.cache_watch import CacheWatch
from brisk.runtime.models import loader as loader_module
from brisk.runtime.models.entry import LoadOutcome, SessionEntry
from brisk.runtime.models.load_watch import ABANDONED_S, LoadWatch
from brisk.runtime.models.loader import Loader
from brisk.runtime.requests.batch import RunsInProgress
from brisk.runtime.sessions.session import Session
from brisk.runtime.settings import ArtefactUse
from brisk.segments.table import SegmentTable
from support.runtime.requests import NotingLoader, a_model
from support.runtime.runtime_process import quick_model
from support.waiting import wait_until


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_work_that_somebody_waits_for_is_given_up_once_it_takes_too_long() -> None:
    clock, told = Clock(), []
    watch = LoadWatch(60.0, clock)
    with watch.over("a load", lambda: not told, lambda: told.append("given up")):
        for _ in range(2):
            clock.now_s += 29.0
            assert watch.look() is None
        assert not told
        clock.now_s += 2.0
        assert watch.look() is None
        clock.now_s += ABANDONED_S - 0.1
        assert watch.look() is None
        clock.now_s += 0.1
        found = watch.look()
        assert found is not None
        assert found.what == "a load"
    assert told == ["given up"]
    assert watch.look() is None


def test_work_for_nobody_is_found_and_not_while_it_is_wanted_again() -> None:
    clock, wanted = Clock(), [True]
    watch = LoadWatch(1000.0, clock)
    with watch.over("a load", lambda: wanted[0]):
        clock.now_s += 500.0
        assert watch.look() is None
        for is_wanted in (False, True, False):
            wanted[0] = is_wanted
            clock.now_s += ABANDONED_S - 1.0
            assert watch.look() is None, "seen unwanted for less than that"
        clock.now_s += ABANDONED_S
        assert watch.look() is not None


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_model_is_at_fault_if_its_work_took_too_long_while_wanted(is_wanted: bool) -> None:
    clock, model = Clock(), Path("model.onnx")
    watch = LoadWatch(60.0, clock)
    with watch.over("work", lambda: is_wanted, model=model):
        for passed_s in (55.0, 6.0):
            clock.now_s += passed_s
            assert watch.look() is None
        clock.now_s += ABANDONED_S
        found = watch.look()
    assert found is not None
    assert found.at_fault == (model if is_wanted else None)


def test_lanes_that_took_too_long_are_their_model_s_fault() -> None:
    clock, model = Clock(), Path("model.onnx")
    watch = LoadWatch(60.0, clock)
    table = SegmentTable(1, lambda index: index)
    table.lanes_at_work += 1
    watch.follow_lanes(model, table)
    watch.follow_lanes(model, SegmentTable(0, lambda index: index))  # which has ended
    clock.now_s += 60.0
    assert watch.look() is None
    clock.now_s += ABANDONED_S
    found = watch.look()
    assert found is not None
    assert found.at_fault == model
    table.lanes_at_work -= 1
    table.close()
    assert watch.look() is None


@pytest.mark.parametrize(
    ("closed_before", "closed_behind", "expected"),
    [(False, False, 1), (True, True, 0), (False, True, 0)],
)
def test_a_dropped_session_that_a_frame_loads_to_its_end_is_not_finished(
    closed_before: bool, closed_behind: bool, expected: int
) -> None:
    finished: list[object] = []
    loader: Any = NotingLoader()
    loader.watch = LoadWatch(60.0)
    loader._later = SimpleNamespace(put=lambda task, _: finished.append(task))
    loader._yielding = SimpleNamespace(expect=lambda: 0.0)
    table = SegmentTable(1, lambda index: index)
    table.is_short, table.is_closed = True, closed_before
    session: Any = SimpleNamespace(table=table)
    loader._finish(SessionEntry("key", Path("model.onnx"), a_model()), session, 0.0)
    table.is_closed = closed_behind
    assert not finished
    assert table[0] == 0
    assert len(finished) == expected


def test_who_asked_for_a_load_that_takes_too_long_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def load(*_: object, **__: object) -> Session:
        ended.wait(30)
        raise InvalidModelError("too late")

    monkeypatch.setattr(loader_module, "load_session", load)
    caches, runs = CacheWatch(None), RunsInProgress()
    loader = Loader("cpu", 1, lambda: None, ArtefactUse.OFF, caches, 0.05, runs)
    entry = SessionEntry("key", tmp_path / "model.onnx", a_model(tmp_path / "model.onnx"))
    loader.load(entry)
    try:
        wait_until(lambda: loader.watch.look() is None and bool(loader.outcomes), "the refusal")
        outcome = loader.outcomes.popleft()
        assert isinstance(outcome, LoadOutcome)
        assert "takes longer than 0.05 s (BRISK_MAX_LOAD_S)" in str(outcome.error)
    finally:
        ended.set()


@pytest.mark.parametrize("accuracy_ppm", [0, 970_000])
def test_behind_a_load_it_is_said_what_its_entry_asks_to_learn(
    tmp_path: Path, accuracy_ppm: int
) -> None:
    """Nothing, too: what is kept of the model's traffic goes then."""
    told: list[Aim | None] = []

    class Watch(CacheWatch):
        def collect(self, session: Session, aim: Aim | None) -> None:
            told.append(aim)

    model = quick_model(tmp_path / "model.onnx")
    loader = Loader("cpu", 1, lambda: None, ArtefactUse.OFF, Watch(None), 60.0, RunsInProgress())
    requester = a_model(model)._replace(accuracy_ppm=accuracy_ppm)
    loader.load(SessionEntry("key", model, requester))
    wait_until(lambda: bool(told), "the end of the load")
    assert told == [Aim.of(model, 0.97, "", "") if accuracy_ppm else None]
    outcome = loader.outcomes.popleft()
    assert isinstance(outcome, LoadOutcome)
    assert outcome.session is not None
    outcome.session.close()
