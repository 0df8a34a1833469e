"""ONNX Runtime against torch, as on a GPU; here on the processor, where both can run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

pytest.importorskip("torch", reason="torch is not installed")

from brisk.runtime.models import torch_session
from brisk.runtime.models.torch_session import (
    RUNS,
    TorchSession,
    compare,
    load_torch_session,
    provider_of,
)
from brisk.segments.frame import SegmentFrame, run_serially
from brisk.segments.opening import CPU
from brisk.segments.values import Value
from support.models.segment_models import info, save, whole

WIDTH = 64
ROWS = np.random.default_rng(5).standard_normal((3, WIDTH)).astype(np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights = np.random.default_rng(4).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["y"])]
    path = tmp_path_factory.mktemp("models") / "model.onnx"
    return save(path, nodes, [info("x", "n", WIDTH)], [info("y", "n", WIDTH)], {"w": weights})


@pytest.fixture
def session(model: Path) -> TorchSession:
    session = load_torch_session(model, "cpu", 1, None)
    assert session.table.wait(30)
    return session


class Repeated:
    """The session's answers, each computed ``times`` times."""

    def __init__(self, session: TorchSession, times: int) -> None:
        self.calls = 0
        self._session = session
        self._times = times

    def __call__(self, inputs: Mapping[str, Value]) -> Mapping[str, Value]:
        self.calls += 1
        for _ in range(self._times - 1):
            self._session.run_by_torch(inputs)
        return self._session.run_by_torch(inputs)


def test_what_runs_faster_takes_over_with_the_same_answers(
    model: Path, session: TorchSession
) -> None:
    torch = Repeated(session, 100)
    result = compare(model, 1, CPU, torch)
    assert result.program is not None, result.words
    assert torch.calls == RUNS + 1
    answer = run_serially(result.program, {"x": ROWS})["y"]
    np.testing.assert_allclose(answer, whole(model, {"x": ROWS})["y"], 1e-5, 1e-6)


def test_what_is_no_faster_does_not(model: Path, session: TorchSession) -> None:
    known: dict[bytes, Mapping[str, Value]] = {}

    def remembered(inputs: Mapping[str, Value]) -> Mapping[str, Value]:
        key = inputs["x"].tobytes()
        if key not in known:
            known[key] = session.run_by_torch(inputs)
        return known[key]

    assert compare(model, 1, CPU, remembered).program is None


def test_other_answers_are_no_reason_to_take_over(model: Path, session: TorchSession) -> None:
    def wrong(inputs: Mapping[str, Value]) -> Mapping[str, Value]:
        return {name: value + 0.01 for name, value in Repeated(session, 100)(inputs).items()}

    result = compare(model, 1, CPU, wrong)
    assert (result.program, result.words) == (None, "ONNX Runtime's answers differ from torch's")


def test_a_session_runs_by_whoever_won(
    session: TorchSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _answer(session)
    monkeypatch.setattr(torch_session, "provider_of", lambda device: CPU)
    assert session.load_warm(lambda: True)
    frame = session.start({"x": ROWS}, ["y"])
    assert isinstance(frame, SegmentFrame) is (session._program is not None)
    np.testing.assert_allclose(_answer(session), before, 1e-5, 1e-6)


def test_there_is_no_provider_where_the_package_has_none() -> None:
    assert provider_of("cpu") is None


def _answer(session: TorchSession) -> np.ndarray:
    frame = session.start({"x": ROWS}, ["y"])
    while not frame.step():
        pass
    value = frame.results()["y"]
    assert isinstance(value, np.ndarray)
    return value
