"""A model served from its own file gets its prepared form, which takes over while it runs."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from brisk.artefacts import room, store
from brisk.artefacts.content import find_folder, writable_folder
from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.runtime.models.background_prepare import PreparationTask, SegmentPreparer
from brisk.segments.prepared import preparation, trial
from brisk.segments.prepared.form import find_prepared
from brisk.stub.runtime_client.client import RuntimeClient
from brisk.telemetry.observer import Observer
from support.models.quantised_models import product_of
from support.models.segment_models import chain, whole
from support.runtime.runtime_process import (
    building_runtime,
    describe,
    infer,
    is_settled,
    opened,
    worker_of,
)
from support.runtime.runtime_processes import children, hurry, hurry_helpers
from support.waiting import PATIENCE_S, wait_until

BUILDER_S = 120.0
"""Whoever makes the form may get idle processors only, and other tests run beside."""

ROWS = np.random.default_rng(3).standard_normal((4, 512)).astype(np.float32)


@pytest.fixture
def building_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private_cache: None
) -> Iterator[RuntimePaths]:
    with building_runtime(tmp_path, monkeypatch, threads=1) as place:
        yield place


def _maps(process: int, file: Path) -> bool:
    return str(file) in Path(f"/proc/{process}/maps").read_text()


def await_settled(
    place: RuntimePaths, name: str, what: str, patience_s: float = PATIENCE_S
) -> None:
    def is_so() -> bool:
        hurry_helpers(place.base)
        return is_settled(place, name)

    wait_until(is_so, what, patience_s, every_s=0.1)


def test_it_takes_over_and_the_models_own_file_is_let_go_of(
    building_place: RuntimePaths, tmp_path: Path
) -> None:
    (tmp_path / "big").mkdir()
    model = chain(tmp_path / "big" / "model.onnx")
    description = describe(model)
    with opened(building_place, description) as connection:
        before = infer(connection, ROWS)
        worker = worker_of(building_place)
        assert not is_settled(building_place, description.name)
        await_settled(building_place, description.name, "the prepared form's turn", BUILDER_S)
        made = find_prepared(model)
        assert made is not None
        np.testing.assert_allclose(infer(connection, ROWS), before, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(infer(connection, ROWS), infer(connection, ROWS))
        assert worker_of(building_place) == worker
        assert _maps(worker, made)
        assert not _maps(worker, model)


def test_weights_of_four_bits_answer_as_onnx_runtime_s_own_session_before_and_after(
    building_place: RuntimePaths, tmp_path: Path
) -> None:
    case = product_of("MatMul", TensorProto.INT4, 4, 2, 0, offset=True)
    graph = case.model.graph
    graph.node[-1].output[0] = graph.output[0].name = "y"
    (tmp_path / "few").mkdir()
    path = tmp_path / "few" / "bits.onnx"
    path.write_bytes(case.model.SerializeToString())
    description = describe(path)
    rows = [inputs["x"] for inputs in case.inputs]
    expected = [whole(path, {"x": each})["y"] for each in rows]

    def compare(connection: RuntimeClient) -> None:
        for given, each in zip(rows, expected, strict=True):
            answer = infer(connection, given)
            np.testing.assert_allclose(answer, each, 1e-3, 1e-4 * np.abs(each).max())

    with opened(building_place, description) as connection:
        compare(connection)
        await_settled(building_place, description.name, "the prepared form's turn", BUILDER_S)
        assert find_prepared(path) is not None
        compare(connection)
    with opened(building_place, description) as connection:  # from the prepared form
        compare(connection)


def test_a_model_without_a_prepared_form_is_settled_nevertheless(
    building_place: RuntimePaths, tmp_path: Path, private_cache: None
) -> None:
    """Its place is a file: nothing can be written there."""
    (tmp_path / "big").mkdir()
    model = chain(tmp_path / "big" / "model.onnx", layers=2)
    directory = writable_folder(model)
    directory.rmdir()
    directory.write_text("in the way")
    description = describe(model)
    with opened(building_place, description) as connection:
        before = infer(connection, ROWS)
        await_settled(building_place, description.name, "the end of the attempt")
        np.testing.assert_allclose(infer(connection, ROWS), before, rtol=1e-4, atol=1e-5)


def test_a_builder_that_finds_another_one_at_it_comes_again(
    tmp_path: Path, private_cache: None
) -> None:
    model = chain(tmp_path / "model.onnx", layers=2)
    told: list[bool] = []
    with store.locked(writable_folder(model)) as is_ours:
        assert is_ours
        preparer = SegmentPreparer(1, delay_s=0.1)
        preparer.build_later(PreparationTask(model, (), lambda: True, told.append))
        with pytest.raises(AssertionError):
            wait_until(lambda: bool(told), "what may not come", patience_s=3.0)

    def is_told() -> bool:
        hurry(children())
        return bool(told)

    wait_until(is_told, "the form", every_s=0.1)
    assert told == [True]
    assert find_prepared(model) is not None


def test_a_builder_that_is_killed_leaves_nothing(tmp_path: Path, private_cache: None) -> None:
    model = chain(tmp_path / "model.onnx", layers=12)
    told: list[bool] = []

    def has_begun() -> bool:
        hurry(children())
        return any(store.artefacts_directory().glob(f"*/*/{room.DRAFT}*"))

    preparer = SegmentPreparer(1, delay_s=0.0)
    is_wanted = threading.Event()
    is_wanted.set()
    preparer.build_later(PreparationTask(model, (), is_wanted.is_set, told.append))
    wait_until(has_begun, "what a builder writes", every_s=0.002)
    builder = preparer._process.process_id
    assert builder is not None
    os.kill(builder, signal.SIGSTOP)  # else it may be done before it is killed
    is_wanted.clear()
    wait_until(lambda: bool(told), "its end")
    assert told == [False]
    assert find_folder(model) is None


def test_the_next_model_of_a_structure_starts_in_its_sessions(
    building_place: RuntimePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of other weights, with answers of its own, also when the first one has gone."""
    monkeypatch.setattr(trial, "MOST_LOST", math.inf)  # whatever was measured
    paths = []
    for seed, name in enumerate(("first", "second")):
        (tmp_path / name).mkdir()
        paths.append(chain(tmp_path / name / "model.onnx", seed=seed))
        preparation.prepare(paths[-1], 1)
    first, second = (describe(path, name=path.parent.name) for path in paths)
    expected = [whole(path, {"x": ROWS})["y"] for path in paths]
    with opened(building_place, second) as later:
        await_settled(building_place, second.name, "the second one's sessions")
        with opened(building_place, first) as connection:
            await_settled(building_place, first.name, "the first one's sessions")
            np.testing.assert_allclose(infer(connection, ROWS), expected[0], rtol=1e-3, atol=1e-3)
            np.testing.assert_allclose(infer(later, ROWS), expected[1], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(infer(later, ROWS), expected[1], rtol=1e-3, atol=1e-3)
        with Observer(building_place, Role.FOREGROUND) as observer:
            samples = observer.statistics()
    lookups = {
        each.labels: each.values[0]
        for each in samples
        if each.metric == "brisk_structure_lookups_total"
    }
    assert lookups["second", "1", "made"] > 0
    assert lookups["first", "1", "found"] > 0
    assert ("first", "1", "made") not in lookups
