"""A worker that nobody asks for a model practises loading one; others begin with their load."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brisk.execution import practice
from brisk.runtime import loader as loading
from brisk.runtime.artefact_use import ArtefactUse
from brisk.runtime.loader import Loader
from brisk.segments.engine import Engine

THREADS = 3


def a_loader(wake: Any, engine: Engine = Engine.BRISK) -> Loader:
    caches: Any = SimpleNamespace()
    return Loader("cpu", THREADS, wake, ArtefactUse.OFF, caches, engine)


def test_an_idle_worker_practises_with_the_threads_of_its_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    practised = threading.Event()
    asked: list[int] = []

    def practise(threads: int) -> None:
        asked.append(threads)
        practised.set()

    monkeypatch.setattr(practice, "practise", practise)
    monkeypatch.setattr(loading, "IDLE_S", 0.01)
    a_loader(lambda: None)
    assert practised.wait(10)
    assert asked == [THREADS]


def test_a_worker_whose_models_onnxruntime_computes_has_nothing_to_practise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    practised: list[int] = []
    told = threading.Event()
    monkeypatch.setattr(practice, "practise", practised.append)
    monkeypatch.setattr(loading, "IDLE_S", 0.0)
    asker: Any = SimpleNamespace(job_class="normal", name="m", version=1)
    loader = a_loader(told.set, Engine.AUTO)
    loader.load(7, tmp_path / "absent.onnx", asker, lambda: None, lambda: None)
    assert told.wait(5)
    assert not practised


def test_a_load_that_is_asked_for_at_once_waits_for_no_practice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    practised: list[int] = []
    told = threading.Event()
    monkeypatch.setattr(practice, "practise", practised.append)
    monkeypatch.setattr(loading, "IDLE_S", 10.0)
    asker: Any = SimpleNamespace(job_class="normal", name="m", version=1)
    loader = a_loader(told.set)
    loader.load(7, tmp_path / "absent.onnx", asker, lambda: None, lambda: None)
    assert told.wait(5)
    outcome = loader.take()
    assert outcome is not None
    assert outcome.ticket == 7
    assert not practised
