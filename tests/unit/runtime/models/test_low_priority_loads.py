"""Loads beside a real-time model are less urgent than it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from brisk.os_priority import LOADING, at_loading_priority
from brisk.runtime.early_exit.cache_watch import CacheWatch
from brisk.runtime.models.entry import LoadOutcome, SessionEntry
from brisk.runtime.models.loader import Loader
from brisk.runtime.requests.batch import RunsInProgress
from brisk.runtime.settings import ArtefactUse
from brisk.scheduling.job_class import JobClass
from support.runtime.requests import ASession, NotingLoader, a_model, a_peer, a_session_table
from support.runtime.runtime_process import quick_model
from support.waiting import wait_until


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_work_and_the_threads_it_starts_are_nicer_and_the_caller_is_not() -> None:
    found: list[int] = []

    def work() -> str:
        found.append(niceness())
        child = threading.Thread(target=lambda: found.append(niceness()))
        child.start()
        child.join()
        return "done"

    before = niceness()
    assert at_loading_priority(work) == "done"
    assert found == [LOADING] * 2
    assert niceness() == before < LOADING
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_what_the_work_raises_reaches_the_caller() -> None:
    def work() -> None:
        raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        at_loading_priority(work)


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        (("realtime", "normal"), True),
        (("realtime", "realtime"), False),
        (("normal", "normal"), False),
    ],
)
def test_a_load_stands_back_while_a_more_urgent_model_is_served(
    tmp_path: Path, classes: tuple[str, str], expected: bool
) -> None:
    paths = [tmp_path / name / "model.onnx" for name in ("served", "loaded")]
    for path in paths:
        path.parent.mkdir()
        path.write_bytes(b"model")
    loader = NotingLoader()
    table = a_session_table(loader)
    served, loaded = (
        a_model(path, JobClass(kind)) for path, kind in zip(paths, classes, strict=True)
    )
    table.bind(a_peer(1), served)
    table.settle(LoadOutcome(loader.asked[0], ASession(), None))
    table.bind(a_peer(2), loaded)
    # nothing is served yet when the first one comes
    assert [entry.has_low_priority for entry in loader.asked] == [False, expected]


def test_a_load_for_which_no_thread_can_begin_is_refused_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, runs = quick_model(tmp_path / "model.onnx"), RunsInProgress()
    loader = Loader("cpu", 1, lambda: None, ArtefactUse.OFF, CacheWatch(None), 60.0, runs)
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "brisk-low-priority":
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    for key in ("refused", "loaded"):
        entry = SessionEntry(key, model, a_model(model), has_low_priority=key == "refused")
        loader.load(entry)
    wait_until(lambda: len(loader.outcomes) >= 2, "both outcomes")
    refused, loaded = loader.outcomes.popleft(), loader.outcomes.popleft()
    assert isinstance(refused, LoadOutcome)
    assert isinstance(loaded, LoadOutcome)
    assert str(refused.error) == f"loading {model} failed: RuntimeError: can't start new thread"
    assert loaded.session is not None
    loaded.session.close()
