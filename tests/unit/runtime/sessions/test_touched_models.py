"""A link to a model's file, or another mode of it, does not make it another model."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from brisk.errors import InvalidModelError
from brisk.runtime.sessions.segment_session import SegmentSession, load_segment_session
from brisk.segments.prepared import preparation
from brisk.segments.prepared.preparation import prepare
from support.models.segment_models import answer, chain, scaling
from support.runtime.external_data import settled

pytestmark = pytest.mark.usefixtures("private_cache")

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)
SCALE = np.array([5.0], np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return settled(scaling(tmp_path / "model.onnx"))


def linked(model: Path) -> Path:
    os.link(model, model.with_name("backup"))
    return settled(model)


def loaded(model: Path) -> SegmentSession:
    session = load_segment_session(model, 1, lambda error: None, None)
    list(session.table)
    assert session.load_warm(lambda: True)
    return session


def test_a_request_may_still_give_an_optional_input(model: Path) -> None:
    session = loaded(model)
    linked(model)
    np.testing.assert_array_equal(answer(session, {"x": ROWS, "scale": SCALE}), 5 * ROWS)


def test_a_write_that_puts_the_time_back_makes_another_model(model: Path) -> None:
    session = loaded(model)
    status, data = model.stat(), model.read_bytes()
    with model.open("r+b") as file:
        file.write(data.replace(np.float32(3).tobytes(), np.float32(4).tobytes()))
    os.utime(model, ns=(status.st_atime_ns, status.st_mtime_ns))
    settled(model)
    with pytest.raises(InvalidModelError, match="has changed since it was loaded"):
        answer(session, {"x": ROWS, "scale": SCALE})


def test_a_form_that_was_made_meanwhile_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = settled(chain(tmp_path / "model.onnx", layers=3, width=64))
    session = loaded(model)
    digested = preparation.content.content_of

    def touched(*given: object) -> object:
        content = digested(*given)
        monkeypatch.setattr(preparation.content, "content_of", digested)
        linked(model)
        return content

    monkeypatch.setattr(preparation.content, "content_of", touched)
    prepare(model, 1)
    assert session.adopt_prepared(lambda: True)
    assert session.prepared is not None
    assert not caplog.records


def test_the_form_of_another_model_does_not_take_over_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = settled(chain(tmp_path / "model.onnx", layers=3, width=64))
    session = loaded(model)
    chain(tmp_path / "next.onnx", layers=3, width=64, seed=8).rename(model)
    settled(model)
    prepare(model, 1)
    assert not session.adopt_prepared(lambda: True)
    assert "has changed since it was loaded: load it anew" in caplog.text
