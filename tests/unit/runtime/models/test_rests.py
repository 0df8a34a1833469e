"""Requests are left alone between two tasks behind loads, as long as the first one took."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from brisk.runtime.early_exit.cache_watch import CacheWatch
from brisk.runtime.models import loader as loader_module
from brisk.runtime.models.entry import SessionEntry
from brisk.runtime.models.loader import LONGEST_REST_S, Loader
from brisk.runtime.models.yielding import Yielding
from brisk.runtime.requests.batch import RunsInProgress
from brisk.runtime.settings import ArtefactUse
from support.runtime.requests import a_model
from support.waiting import wait_until

WORK_S = 0.05


@pytest.mark.parametrize("has_low_priority", [False, True])
def test_a_rest_is_as_long_as_the_work_was_in_whichever_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_low_priority: bool
) -> None:
    """Where a real-time model is served, the work has a thread of lower priority."""
    worked: list[str] = []
    rested: list[tuple[float, float]] = []

    def work(entry: SessionEntry) -> None:
        until_s = time.thread_time() + WORK_S
        while time.thread_time() < until_s:
            pass
        worked.append(entry.key)

    def rest(_: Yielding, worked_s: float, longest_s: float) -> None:
        assert worked == ["first"], "behind the last one nothing waits"
        rested.append((worked_s, longest_s))

    monkeypatch.setattr(loader_module, "_make_narrow", work)
    monkeypatch.setattr(Yielding, "rest", rest)
    caches, runs = CacheWatch(None), RunsInProgress()
    loader = Loader("cpu", 1, lambda: None, ArtefactUse.OFF, caches, 60.0, runs)
    model = tmp_path / "model.onnx"
    for key in ("first", "second"):
        loader.make_narrow(
            SessionEntry(key, model, a_model(model), has_low_priority=has_low_priority)
        )
    wait_until(lambda: worked == ["first", "second"], "both tasks")
    ((worked_s, longest_s),) = rested
    assert WORK_S <= worked_s < 10 * WORK_S
    assert longest_s == LONGEST_REST_S
