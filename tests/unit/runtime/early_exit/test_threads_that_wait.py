"""Threads of early answers go on, and keep no model in memory that is unloaded meanwhile."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brisk.runtime.early_exit.audits import Auditor, Question
from brisk.runtime.early_exit.cache_watch import CacheWatch, OpenedCaches
from brisk.runtime.sessions.segment_session import load_segment_session
from support.models.segment_models import scaling
from support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("private_cache")


def is_gone(model: weakref.ref[Any]) -> bool:
    gc.collect()
    return model() is None


class Looks(CacheWatch):
    """Counts its looks at models' files."""

    count = 0

    def _look(self, watched: Any) -> None:
        super()._look(watched)
        self.count += 1


def test_a_model_whose_caches_were_watched_goes_when_it_is_unloaded(tmp_path: Path) -> None:
    session = load_segment_session(scaling(tmp_path / "model.onnx"), 1, None, None)
    assert session.table.wait(30.0)
    watch = Looks(None, look_s=0.01)
    watch.serve(session, OpenedCaches(None, None))
    wait_until(lambda: watch.count > 0, "a look")
    session.close()
    unloaded = weakref.ref(session)
    del session
    wait_until(lambda: is_gone(unloaded), "the end of the session")


class Served:
    """What an audit is of."""


def a_question() -> Question:
    scores: Any = None
    return Question(Path("model.onnx"), "", scores, {"x": np.zeros((1, 3), np.float32)}, ())


def test_a_model_that_was_audited_last_goes_when_it_is_unloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere")  # so the audit fails at once
    auditor: Auditor[Served] = Auditor()
    auditor.ask(a_question(), Served())
    wait_until(lambda: not auditor.waiting, "the verdict")
    context, agrees = auditor.verdicts.popleft()
    assert agrees == []
    unloaded = weakref.ref(context)
    del context
    wait_until(lambda: is_gone(unloaded), "the end of what was audited")


def test_audits_go_on_after_one_that_memory_was_short_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a promise would be audited no more, and nobody would know."""
    auditor: Auditor[str] = Auditor()
    problems = [MemoryError()]

    def verdict(question: Question) -> list[bool]:
        if problems:
            raise problems.pop()
        return [True]

    monkeypatch.setattr(auditor, "_verdict", verdict)
    for context in ("first", "second"):
        auditor.ask(a_question(), context)
    wait_until(lambda: not auditor.waiting, "both verdicts")
    assert list(auditor.verdicts) == [("first", []), ("second", [True])]
    assert "an audit of model.onnx failed: memory is short" in caplog.text
