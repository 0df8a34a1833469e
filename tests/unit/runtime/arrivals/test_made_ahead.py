"""Sessions that are made before their weights are here: none of them can have been read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from brisk.segments.frame import run_serially
from brisk.segments.model.sources import BareModel
from brisk.segments.starting import start_segments
from support.models.segment_models import chain, info, save, whole

WIDTH = 256
X = np.random.default_rng(3).standard_normal((2, WIDTH)).astype("f4")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))


def answer(source: BareModel) -> np.ndarray:
    starting = start_segments(source)
    starting.table.work("test")
    return run_serially(starting.program, {"x": X})["y"]


def test_answers_are_of_the_weights_that_came_afterwards(tmp_path: Path) -> None:
    model = chain(tmp_path / "m.onnx", layers=6, width=WIDTH)
    expected = answer(BareModel(model, 1, is_awaited=True))
    content = model.read_bytes()
    source = BareModel(model, 1, is_awaited=True)
    places = [place for index in range(len(source.segments)) for place in source.reads(index)]
    assert sum(place.size for place in places) == 6 * WIDTH * WIDTH * 4
    with model.open("r+b") as file:
        for place in places:
            file.seek(place.offset)
            file.write(bytes(place.size))
        file.flush()
        for index in range(len(source.segments)):
            source.make_ahead(index)
        file.seek(0)
        file.write(content)
    np.testing.assert_array_equal(answer(source), expected)
    np.testing.assert_allclose(expected, whole(model, {"x": X})["y"], rtol=1e-3, atol=1e-4)


def test_opening_makes_no_session_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = chain(tmp_path / "m.onnx", layers=6, width=WIDTH)
    source = BareModel(model, 1, is_awaited=True)
    source.make_ahead(0)

    def refuse(*arguments: object) -> object:
        raise AssertionError("a session is made")

    monkeypatch.setattr(BareModel, "_open", refuse)
    assert source.open(0).run is not None


def test_what_reads_constants_when_it_is_made_is_not_made_ahead(tmp_path: Path) -> None:
    """A size that decides shapes, in a file of its own as large weights are, stays a constant."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Clip", ["m", "least"], ["y"]),
    ]
    weights = {"w": np.ones((WIDTH, WIDTH), "f4"), "least": np.zeros((), "f4")}
    model = save(
        tmp_path / "m.onnx", nodes, [info("x", "n", WIDTH)], [info("y", "n", WIDTH)], weights
    )
    source = BareModel(model, 1, is_awaited=True)
    source.make_ahead(0)
    np.testing.assert_array_equal(answer(source), whole(model, {"x": X})["y"])


def test_a_model_that_cannot_be_made_says_so_when_it_is_opened(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("NoSuchOperator", ["m"], ["y"]),
    ]
    weights = {"w": np.ones((WIDTH, WIDTH), "f4")}
    model = save(
        tmp_path / "m.onnx", nodes, [info("x", "n", WIDTH)], [info("y", "n", WIDTH)], weights
    )
    source = BareModel(model, 1, is_awaited=True)
    source.make_ahead(0)
    with pytest.raises(Exception, match="NoSuchOperator"):
        source.open(0)
