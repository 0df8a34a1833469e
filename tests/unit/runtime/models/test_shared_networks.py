"""Networks of pipelines that ordinary entries of the same files use, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brisk.runtime.models import table as table_module
from support.pipeline_entries import describe_fork, scaler, write
from support.runtime.requests import NotingLoader, a_model, a_peer, a_session_table


@pytest.mark.parametrize("pipeline_first", [True, False])
def test_early_answers_that_a_pipeline_asks_for_are_none_of_its_networks(
    tmp_path: Path, pipeline_first: bool
) -> None:
    file = scaler(tmp_path / "detector" / "1" / "model.onnx", 2.0)
    node = {
        "inputs": {"x": "request.x"},
        "variants": {"only": {"entry": "detector", "accuracy": 1}},
    }
    described = {"objective_ms": 1000, "nodes": {"single": node}, "outputs": {"y": "single.y"}}
    pipeline = write(tmp_path / "traffic" / "1", described)
    asks = a_model(pipeline)._replace(accuracy_ppm=980_000, tolerance="0.01", smaller="s.onnx")
    loader = NotingLoader()
    table = a_session_table(loader)
    models = [asks, a_model(file)]
    for number, model in enumerate(models if pipeline_first else reversed(models)):
        table.bind(a_peer(number), model)
    (network,) = loader.asked
    assert network.bindings
    assert network.pipelines
    assert network.aim is None


def test_a_network_that_an_entry_asks_early_answers_of_is_not_that_of_a_pipeline(
    tmp_path: Path,
) -> None:
    file = scaler(tmp_path / "traffic" / "1" / "own.onnx", 2.0)
    node = {
        "inputs": {"x": "request.x"},
        "variants": {"only": {"file": "own.onnx", "accuracy": 1}},
    }
    described = {"objective_ms": 1000, "nodes": {"single": node}, "outputs": {"y": "single.y"}}
    pipeline = a_model(write(file.parent, described))._replace(accuracy_ppm=980_000)
    loader = NotingLoader()
    table = a_session_table(loader)
    for number, model in enumerate([pipeline, a_model(file)._replace(accuracy_ppm=980_000)]):
        table.bind(a_peer(number), model)
    of_pipeline, own = loader.asked
    assert of_pipeline.aim is None
    assert own.aim is not None
    assert own.aim.accuracy == 0.98


def test_a_pipeline_whose_network_vanishes_while_it_is_bound_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = tmp_path / "fork" / "1"
    pipeline = a_model(write(version, describe_fork(version)))
    loader = NotingLoader()
    table = a_session_table(loader)
    identified = table_module.identity_of
    seen: list[str] = []

    def vanishing(path: str, *more: Any) -> str:
        if path in seen and path.endswith("right_large.onnx"):
            raise OSError(5, "Input/output error", path)
        seen.append(path)
        return identified(path, *more)

    with monkeypatch.context() as patched:
        patched.setattr(table_module, "identity_of", vanishing)
        with pytest.raises(OSError, match="Input/output error"):
            table.bind(a_peer(), pipeline)
    assert len(table) == 0
    table.bind(a_peer(), pipeline)
    assert loader.asked[-1].pipelines
