"""Models that lie on a web server are ready when it is known what they are, run as soon as their
bytes are here, and never before."""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from brisk.copies.connection import resolve
from brisk.copies.courier import Courier
from brisk.copies.local import copy_of
from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.segments.prepared import preparation, trial
from brisk.segments.prepared.preparation import prepare
from brisk.stub.runtime_client.pending import MAX_LOAD_STRIKES
from brisk.telemetry.observer import Observer
from support.models.segment_models import chain, info, save, whole
from support.remote.entries import end_courier, publish_here
from support.remote.registries import RegistryServer
from support.runtime.runtime_process import describe, infer, opened, submit
from support.waiting import wait_until

WIDTH = 512
X = np.random.default_rng(3).standard_normal((2, WIDTH)).astype("f4")


def expect(answer: np.ndarray, model: Path) -> None:
    np.testing.assert_allclose(answer, whole(model, {"x": X})["y"], rtol=1e-3, atol=1e-4)


def test_a_model_answers_when_its_last_byte_is_here_and_not_before(
    registry: RegistryServer, place: RuntimePaths, tmp_path: Path
) -> None:
    model = chain(tmp_path / "model.onnx")
    remote = publish_here(registry, model)
    last = model.stat().st_size - (1 << 18)
    registry.hold("/m/model.onnx", last)
    local = resolve(remote)
    assert not copy_of(local).is_whole
    with opened(place, describe(local)) as connection:  # it is ready
        _, answer = submit(connection, X)
        time.sleep(0.5)
        assert not answer.has_come
        registry.let_go()
        expect(answer.output(), model)
        np.testing.assert_allclose(infer(connection, X), answer.output(), rtol=1e-3, atol=1e-4)
    copy = copy_of(local)
    wait_until(lambda: copy.is_whole, "the rest of the model")
    assert local.read_bytes() == model.read_bytes()


def test_other_models_answer_while_one_waits_for_bytes(
    registry: RegistryServer, place: RuntimePaths, tmp_path: Path, quick: Path
) -> None:
    remote = publish_here(registry, chain(tmp_path / "model.onnx"))
    registry.hold("/m/model.onnx", 1 << 20)
    value = np.ones((1, 4), np.float32)
    with (
        opened(place, describe(resolve(remote))) as arriving,
        opened(place, describe(quick)) as other,
    ):
        _, answer = submit(arriving, X)
        started_s = time.monotonic()
        for _ in range(50):
            np.testing.assert_array_equal(infer(other, value), -value)
        assert time.monotonic() - started_s < 5
        assert not answer.has_come
        registry.let_go()
        answer.output()


def test_a_request_that_waits_for_bytes_ends_with_its_time(
    registry: RegistryServer, place: RuntimePaths, tmp_path: Path
) -> None:
    remote = publish_here(registry, chain(tmp_path / "model.onnx"))
    registry.hold("/m/model.onnx", 1 << 20)
    with opened(place, describe(resolve(remote))) as connection:
        late_ns = time.monotonic_ns() + 300_000_000
        _, answer = submit(connection, X, deadline_ns=late_ns)
        assert "time-out ran out" in str(answer.wait().error)
        registry.let_go()
        infer(connection, X)


def test_a_published_form_is_what_the_model_starts_by(
    registry: RegistryServer, place: RuntimePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = chain(tmp_path / "model.onnx")
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "publisher"))
    remote = publish_here(registry, model, form=True)
    registry.hold("/m/model.onnx", 1 << 20)
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    local = resolve(remote)
    told: list[str] = []
    with opened(place, describe(local), told.append) as connection:
        answer = infer(connection, X)
        registry.let_go()
        assert any("from its artefact, while it arrives" in text for text in told), told
        expect(answer, model)
        wait_until(lambda: copy_of(local).is_whole, "the model's own file")
    sent = dict(registry.sent)
    with opened(place, describe(resolve(remote))) as connection:  # all of it is here
        np.testing.assert_allclose(infer(connection, X), answer, rtol=1e-3, atol=1e-4)
    assert dict(registry.sent) == sent


def test_an_unloaded_model_is_fetched_no_further(
    registry: RegistryServer, place: RuntimePaths, tmp_path: Path
) -> None:
    remote = publish_here(registry, chain(tmp_path / "model.onnx"))
    registry.hold("/m/model.onnx", 1 << 20)
    local = resolve(remote)
    with opened(place, describe(local)) as connection:
        submit(connection, X)
    with Courier() as courier:
        wait_until(lambda: not courier.status(), "its end")
    registry.let_go()
    time.sleep(0.5)
    assert not copy_of(local).is_whole


def test_a_courier_that_dies_is_started_again_and_goes_on(
    registry: RegistryServer, place: RuntimePaths, tmp_path: Path
) -> None:
    model = chain(tmp_path / "model.onnx")
    remote = publish_here(registry, model)
    size = model.stat().st_size
    registry.hold("/m/model.onnx", size // 2)
    local = resolve(remote)
    copy = copy_of(local)
    with opened(place, describe(local)) as connection:
        _, answer = submit(connection, X)
        spans = copy.spans(copy.manifest.order)
        wait_until(lambda: copy.missing_bytes(spans) < 0.7 * size, "half of it")
        end_courier()
        registry.let_go()
        expect(answer.output(), model)
    assert registry.sent["/m/model.onnx"] < 1.6 * size


def test_a_worker_that_dies_loses_no_request_of_a_model_that_arrives(
    registry: RegistryServer, place: RuntimePaths, tmp_path: Path
) -> None:
    model = chain(tmp_path / "model.onnx")
    remote = publish_here(registry, model)
    registry.hold("/m/model.onnx", 1 << 20)
    with opened(place, describe(resolve(remote))) as connection:
        _, answer = submit(connection, X)
        with Observer(place, Role.FOREGROUND) as observer:
            os.kill(observer.pid, signal.SIGKILL)
        time.sleep(0.2)
        registry.let_go()
        expect(answer.output(), model)


def test_a_model_that_waits_for_bytes_is_not_blamed_for_a_worker_that_dies(
    registry: RegistryServer, place: RuntimePaths, tmp_path: Path
) -> None:
    model = chain(tmp_path / "model.onnx")
    remote = publish_here(registry, model)
    registry.hold("/m/model.onnx", 1 << 20)
    with opened(place, describe(resolve(remote))) as connection:
        for _ in range(MAX_LOAD_STRIKES + 1):
            _, answer = submit(connection, X)
            time.sleep(0.3)
            with Observer(place, Role.FOREGROUND) as observer:
                os.kill(observer.pid, signal.SIGKILL)
            time.sleep(0.2)
            assert not answer.has_come
        registry.let_go()
        expect(answer.output(), model)


def test_a_model_whose_structure_is_warm_here_needs_its_weights_alone(
    registry: RegistryServer, place: RuntimePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fine-tune of a model that is prepared here: its own form, which was published, too, and
    begins to come before that is known, is not waited for."""
    monkeypatch.setattr(trial, "MOST_LOST", math.inf)  # at whatever pace a busy machine has
    monkeypatch.setattr(preparation, "LEAST_SPEED", 0.0)
    here, there = (chain(tmp_path / f"{seed}.onnx", seed=seed) for seed in (7, 8))
    prepare(here, 1)
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "publisher"))
    remote = publish_here(registry, there, form=True)
    (form,) = (registry.folder / "m" / "forms").iterdir()
    registry.hold(f"/m/forms/{form.name}", 1 << 20)
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    with opened(place, describe(here)) as warm:
        infer(warm, X)
        told: list[str] = []
        with opened(place, describe(resolve(remote)), told.append) as connection:
            answer = infer(connection, X)
    assert any("from the model and another one's artefact, while" in text for text in told), told
    expect(answer, there)


def small_with_form(
    registry: RegistryServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The ``model.remote`` of a model all of which is its head: integers may decide shapes."""
    nodes = [
        helper.make_node("Cast", ["w"], ["f"], to=1),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    ends = [[info(name, "n", WIDTH)] for name in "xy"]
    weights = {"w": np.random.default_rng(1).integers(0, 9, (WIDTH, WIDTH), "i4")}
    model = save(folder / "model.onnx", nodes, *ends, weights)
    monkeypatch.setenv("BRISK_CACHE_DIR", str(folder / "publisher"))
    remote = publish_here(registry, model, form=True)
    monkeypatch.setenv("BRISK_CACHE_DIR", str(folder / "cache"))
    return remote


def test_a_small_model_that_is_here_starts_by_its_form_and_is_sent_once(
    registry: RegistryServer, place: RuntimePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = small_with_form(registry, tmp_path, monkeypatch)
    local = resolve(remote)
    assert copy_of(local).is_whole
    told: list[str] = []
    with opened(place, describe(local), told.append) as connection:
        expect(infer(connection, X), local)
    assert any("from its artefact" in text for text in told), told
    assert registry.sent["/m/head.bin"]
    assert not registry.sent["/m/model.onnx"]


def test_one_whose_form_nobody_fetches_starts_without_it(
    registry: RegistryServer, place: RuntimePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = resolve(small_with_form(registry, tmp_path, monkeypatch))
    assert copy_of(local).is_whole
    end_courier()
    with opened(place, describe(local)) as connection:
        expect(infer(connection, X), local)
