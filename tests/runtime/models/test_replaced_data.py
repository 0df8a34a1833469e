"""A model is all its files: one of which any is replaced answers by the new one when it is loaded
again, while whoever had it goes on.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest

from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.segments.prepared.form import find_prepared
from brisk.segments.prepared.preparation import prepare
from brisk.telemetry.observer import Observer
from support.runtime.external_data import (
    EXTERNAL,
    LOCATION,
    REPLACE,
    rename_over,
    write_external,
    write_in_place,
)
from support.runtime.runtime_process import describe, infer, is_settled, opened
from support.runtime.runtime_processes import hurry_helpers
from support.waiting import wait_until

X = np.zeros((2, 4), np.float32)


@pytest.fixture
def version(tmp_path: Path) -> Path:
    """A version's folder, as Triton has them."""
    folder = tmp_path / "entry" / "1"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("way", REPLACE)
@pytest.mark.parametrize("kind", EXTERNAL)
def test_data_in_a_folder_of_the_version_is_the_new_one_after_a_load(
    shared_place: RuntimePaths, version: Path, kind: str, way: str
) -> None:
    model = describe(write_external(version, kind))
    with opened(shared_place, model) as first:
        assert (infer(first, X) == 1).all()
        REPLACE[way](version / LOCATION, 5)
        with opened(shared_place, model) as second:
            assert (infer(second, X) == 5).all()


def test_a_session_is_shared_while_its_files_stay(
    shared_place: RuntimePaths, version: Path
) -> None:
    model = describe(write_external(version, "initialiser"))
    with opened(shared_place, model) as first, opened(shared_place, model) as second:
        assert (infer(first, X) == infer(second, X)).all()
        with Observer(shared_place, Role.FOREGROUND) as observer:
            loaded = [each for each in observer.status().models if each.path == model.path]
    assert [each.uses for each in loaded] == [2]


def test_two_models_that_name_one_file_both_have_the_new_one(
    shared_place: RuntimePaths, version: Path
) -> None:
    paths = [write_external(version, kind, f"{kind}.onnx") for kind in ("initialiser", "constant")]
    with contextlib.ExitStack() as open_until_the_end:

        def answers() -> list[float]:
            connections = [
                open_until_the_end.enter_context(opened(shared_place, describe(path)))
                for path in paths
            ]
            return [float(infer(each, X)[0, 0]) for each in connections]

        assert answers() == [1, 1]
        rename_over(version / LOCATION, 7)
        assert answers() == [7, 7]


def test_a_network_of_a_pipeline_has_the_new_data(
    shared_place: RuntimePaths, version: Path
) -> None:
    write_external(version, "initialiser", "network.onnx")
    description = {
        "objective_ms": 1000,
        "nodes": {
            "only": {
                "inputs": {"x": "request.x"},
                "variants": {"one": {"file": "network.onnx", "accuracy": 0.9}},
            }
        },
        "outputs": {"y": "only.y"},
        "trial_shapes": {"x": [1, 4]},
    }
    (version / "pipeline.json").write_text(json.dumps(description))
    model = describe(version / "pipeline.json")
    with opened(shared_place, model) as first:
        assert (infer(first, X) == 1).all()
        write_in_place(version / LOCATION, 5)
        with opened(shared_place, model) as second:
            assert (infer(second, X) == 5).all()


@pytest.mark.parametrize("way", REPLACE)
def test_a_prepared_form_of_replaced_data_is_not_used(
    place: RuntimePaths,
    version: Path,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
    private_cache: None,
) -> None:
    monkeypatch.setenv("BRISK_ARTEFACTS", "use")
    path = write_external(version, "initialiser")
    prepare(path, 1)
    with opened(place, describe(path)) as first:
        assert (infer(first, X) == 1).all()
        REPLACE[way](version / LOCATION, 5)
        with opened(place, describe(path)) as second:
            assert (infer(second, X) == 5).all()


def test_a_prepared_form_of_newer_data_does_not_take_over_from_the_older(
    place: RuntimePaths, version: Path, monkeypatch: pytest.MonkeyPatch, private_cache: None
) -> None:
    monkeypatch.setenv("BRISK_ARTEFACTS", "build")
    path = write_external(version, "initialiser")
    model = describe(path)
    with opened(place, model) as first:
        assert (infer(first, X) == 1).all()
        rename_over(version / LOCATION, 5)

        def has_settled() -> bool:
            hurry_helpers(place.base)
            return is_settled(place, model.name)

        wait_until(has_settled, "the prepared form's turn", 120.0)
        assert find_prepared(path) is not None
        assert (infer(first, X) == 1).all()
