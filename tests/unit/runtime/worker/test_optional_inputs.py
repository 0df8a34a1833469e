"""Inputs that have a default: constants until a request gives one."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brisk.errors import ArtefactError, InvalidRequestError
from brisk.runtime.sessions.segment_session import load_segment_session
from brisk.runtime.sessions.session import Session
from brisk.segments.model import sources
from brisk.segments.prepared.preparation import prepare
from support.models.segment_models import scaling
from support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("private_cache")

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return scaling(tmp_path / "model.onnx")


def _refuse(error: ArtefactError) -> None:
    raise error


def _answer(session: Session, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    frame = session.start(inputs, ["y"])
    while not frame.step():
        pass
    return np.asarray(frame.results()["y"])


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_request_may_give_one_and_the_next_one_need_not(model: Path, is_prepared: bool) -> None:
    if is_prepared:
        prepare(model, 1)
    session = load_segment_session(model, 1, _refuse if is_prepared else None, None)
    assert session.origin == ("artefact" if is_prepared else "model")
    assert [(each.name, each.optional) for each in session.inputs] == [
        ("x", False),
        ("scale", True),
    ]
    scale = np.array([5.0], np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(_answer(session, {"x": ROWS}), 3 * ROWS)
        np.testing.assert_array_equal(_answer(session, {"x": ROWS, "scale": scale}), 5 * ROWS)
    session.caches.collects = True
    for inputs, sampled in (({"x": ROWS}, 1), ({"scale": scale, "x": ROWS}, 0)):
        runs = session.cached_runs(session.start(inputs, ["y"]), inputs, ("model", "1"))
        assert len(runs) == sampled, "nothing is learned from what gives one"
    with pytest.raises(InvalidRequestError, match="input 'scale': expected float32"):
        session.start({"x": ROWS, "scale": np.array([5.0])}, ["y"])
    with pytest.raises(InvalidRequestError, match="no input"):
        session.start({"x": ROWS, "scales": scale}, ["y"])


def test_the_first_run_that_gives_one_awaits_a_load(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes sessions, which nothing can end, however soon its client goes."""
    session = load_segment_session(model, 1, None, None)
    wait_until(lambda: not session.awaits_load, "the load")
    is_begun, goes_on = threading.Event(), threading.Event()
    opened = sources.open_segment

    def held(*given: Any, **options: Any) -> Any:
        is_begun.set()
        assert goes_on.wait(30.0)
        return opened(*given, **options)

    monkeypatch.setattr(sources, "open_segment", held)
    frame = session.start({"x": ROWS, "scale": np.array([5.0], np.float32)}, ["y"])
    assert not session.awaits_load
    run = threading.Thread(target=frame.step)
    run.start()
    assert is_begun.wait(30.0)
    assert session.awaits_load
    goes_on.set()
    run.join(30.0)
    assert not session.awaits_load
