"""Inputs that have a default stay optional where a model cannot be cut, and are constants where no
request can give one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from brisk.errors import InvalidModelError, InvalidRequestError
from brisk.runtime.sessions.open_session import load_session
from brisk.segments.model import sources
from brisk.segments.model.extraction import Segment
from brisk.stub.config.signature import read_signature
from support.models.segment_models import answer, info, save, scaling, whole

pytestmark = pytest.mark.usefixtures("private_cache")

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


def products(path: Path) -> Path:
    """y = x w, with a default of w that is large enough to stay in the file."""
    weight = np.random.default_rng(3).standard_normal((3, 4096)).astype(np.float32)
    return save(
        path,
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [info("x", "n", 3), info("w", 3, 4096)],
        [info("y", "n", 4096)],
        {"w": weight},
    )


@pytest.fixture
def uncut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has nodes cannot be cut."""
    normalise = sources.normalise

    def fails(model: ModelProto) -> None:
        if model.graph.node:
            raise KeyError("a value that nobody makes")
        normalise(model)

    monkeypatch.setattr(sources, "normalise", fails)


@pytest.mark.usefixtures("uncut")
@pytest.mark.parametrize("make", [scaling, products])
def test_a_model_that_cannot_be_cut_takes_its_optional_inputs(
    make: object, tmp_path: Path
) -> None:
    path = make(tmp_path / "model.onnx")  # type: ignore[operator]
    name = "scale" if make is scaling else "w"
    session = load_session(path, "cpu", 1, None)
    assert "one session of the unchanged file" in session.summary
    assert [(each.name, each.optional) for each in session.inputs] == [("x", False), (name, True)]
    given = {"x": ROWS, name: np.ones((1,) if make is scaling else (3, 4096), np.float32)}
    for is_warm in (False, True):
        assert session.table.wait(30)
        assert not is_warm or session.load_warm(lambda: True)
        for inputs in ({"x": ROWS}, given):
            np.testing.assert_array_equal(answer(session, inputs), whole(path, inputs)["y"])
    with pytest.raises(InvalidRequestError, match=f"input '{name}': expected float32"):
        session.start({"x": ROWS, name: np.ones((1,))}, ["y"])
    with pytest.raises(InvalidRequestError, match="there is no input"):
        session.start({"x": ROWS, "v": ROWS}, ["y"])


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The segments whose sessions were made, in order."""
    indices: list[int] = []
    open_segment = sources.open_segment

    def noted(segment: Segment, *given: Any, **options: Any) -> Any:
        indices.append(segment.spec.index)
        return open_segment(segment, *given, **options)

    monkeypatch.setattr(sources, "open_segment", noted)
    return indices


@pytest.mark.parametrize("uncuttable", [False, True])
def test_the_sessions_for_a_given_input_are_made_by_steps_not_by_the_start(
    uncuttable: bool, opened: list[int], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A start holds all other requests up."""
    if uncuttable:
        request.getfixturevalue("uncut")
    path = products(tmp_path / "model.onnx")
    given = {"x": ROWS, "w": np.ones((3, 4096), np.float32)}
    session = load_session(path, "cpu", 1, None)
    assert session.table.wait(30)
    opened.clear()
    frame = session.start(given, ["y"])
    assert opened == []
    assert frame.step()
    assert opened == [0]
    np.testing.assert_array_equal(frame.results()["y"], whole(path, given)["y"])
    np.testing.assert_array_equal(answer(session, given), whole(path, given)["y"])
    assert opened == [0]


@pytest.mark.parametrize("uncuttable", [False, True])
def test_no_session_is_made_of_a_file_that_has_changed(
    uncuttable: bool, opened: list[int], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if uncuttable:
        request.getfixturevalue("uncut")
    path = scaling(tmp_path / "model.onnx")
    session = load_session(path, "cpu", 1, None)
    assert session.table.wait(30)
    products(tmp_path / "next.onnx").rename(path)
    opened.clear()
    with pytest.raises(InvalidModelError, match="has changed since it was loaded"):
        session.start({"x": ROWS, "scale": np.ones((1,), np.float32)}, ["y"])
    assert opened == []


@pytest.mark.parametrize("uncuttable", [False, True])
@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.FLOAT8E4M3FN])
def test_a_weight_of_a_type_that_no_request_can_give_is_a_constant(
    kind: int, uncuttable: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "model.onnx"
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "scale"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    scale = {"scale": np.array(0.1, np.float32)}
    inputs = [info("x", "n", 3), info("q", 3, 5, kind=kind)]
    save(path, nodes, inputs, [info("y", "n", 5)], scale, domains={"": 21}, ir=10)
    model = onnx.load(path)
    values = [number % 15 - 7 for number in range(15)]
    model.graph.initializer.append(helper.make_tensor("q", kind, [3, 5], values))
    onnx.save(model, path)
    expected = whole(path, {"x": ROWS})["y"]
    assert list(read_signature(path).inputs) == ["x"]
    if uncuttable:
        request.getfixturevalue("uncut")
    session = load_session(path, "cpu", 1, None)
    assert [each.name for each in session.inputs] == ["x"]
    np.testing.assert_allclose(answer(session, {"x": ROWS}), expected, rtol=1e-5)
