"""A prepared form that ONNX Runtime does not take, or not now, costs no request its answer."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brisk.errors import ArtefactError, UnavailableError
from brisk.runtime.sessions.segment_session import load_segment_session
from brisk.segments.prepared import form, trial
from brisk.segments.prepared.preparation import prepare
from support.models.segment_models import answer, chain, whole

pytestmark = pytest.mark.usefixtures("private_cache")

ROWS = np.random.default_rng(5).standard_normal((3, 64)).astype(np.float32)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A prepared model that starts in the session of its structure."""
    monkeypatch.setattr(trial, "MOST_LOST", math.inf)
    path = chain(tmp_path / "model.onnx", layers=3, width=64)
    prepare(path, 1)
    return path


def fails(monkeypatch: pytest.MonkeyPatch, name: str, problems: list[Exception]) -> None:
    """Let ``name`` of ``form`` raise each of ``problems`` once."""
    real: Callable[..., Any] = getattr(form, name)

    def opened(*given: Any, **options: Any) -> Any:
        if problems:
            raise problems.pop()
        return real(*given, **options)

    monkeypatch.setattr(form, name, opened)


def test_a_structure_that_onnx_runtime_does_not_take_is_mended(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rejected: list[ArtefactError] = []
    fails(monkeypatch, "open_structure", [RuntimeError("[ONNXRuntimeError] : 1 : FAIL")])
    session = load_segment_session(model, 1, rejected.append, None)
    assert session.origin == "artefact"
    expected = whole(model, {"x": ROWS})["y"]
    np.testing.assert_allclose(answer(session, {"x": ROWS}), expected, rtol=1e-4, atol=1e-5)
    assert session.load_warm(lambda: True)
    np.testing.assert_allclose(answer(session, {"x": ROWS}), expected, rtol=1e-4, atol=1e-5)
    assert len(rejected) == 1
    assert "ONNX Runtime cannot load segment 0" in str(rejected[0])


def test_a_form_that_memory_was_short_for_is_not_rejected(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loader threads begin behind the gate; until then requests load what they need."""
    gate = threading.Event()
    rejected: list[ArtefactError] = []
    problems: list[Exception] = [MemoryError(), RuntimeError("std::bad_alloc")]
    for name in ("open_structure", "open_saved"):
        fails(monkeypatch, name, problems)
    session = load_segment_session(model, 1, rejected.append, lambda table: gate.wait())
    with pytest.raises(UnavailableError, match="to be tried again"):
        answer(session, {"x": ROWS})
    problems.clear()
    gate.set()
    expected = whole(model, {"x": ROWS})["y"]
    np.testing.assert_allclose(answer(session, {"x": ROWS}), expected, rtol=1e-4, atol=1e-5)
    assert not rejected
    assert session.prepared is not None
