"""Entries for a GPU: what is missing is said by the load, in a sentence; and a runtime of a GPU on
a stand-in for the driver, where ONNX Runtime computes on the processor.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from brisk.copies.connection import resolve
from brisk.copies.local import copy_of
from brisk.errors import BriskError, InvalidConfigurationError, UnavailableError
from brisk.protocol.entry_files import REMOTE_FILE
from brisk.protocol.runtime_paths import RuntimePaths
from brisk.segments.onnxruntime import onnxruntime
from brisk.sourcing.room import kept_copies
from brisk.stub.config.entry import find_model
from support.models.segment_models import chain, whole
from support.remote.entries import end_courier, publish_here
from support.remote.registries import RegistryServer
from support.runtime.fake_driver import fake_driver
from support.runtime.runtime_process import (
    describe,
    end_processes,
    infer,
    opened,
    submit,
    worker_of,
)

pytestmark = pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime().get_available_providers(),
    reason="onnxruntime is the build for GPUs here",
)

STAND_IN = """
import onnxruntime

Real = onnxruntime.InferenceSession

class OnTheProcessor(Real):
    def __init__(self, model, options=None, providers=(), **more):
        super().__init__(model, options, providers=["CPUExecutionProvider"], **more)
        self._asked_for = providers

    def get_providers(self):
        return [each if isinstance(each, str) else each[0] for each in self._asked_for]

onnxruntime.InferenceSession = OnTheProcessor
onnxruntime.get_available_providers = lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
"""
"""Of every Python that has it: a build for GPUs that computes on the processor."""

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def gpu_place() -> Iterator[RuntimePaths]:
    parent = Path(tempfile.mkdtemp(prefix="brisk-"))
    own = RuntimePaths(parent / "runtime", "cuda:0")
    yield own
    end_processes(own)
    shutil.rmtree(parent)


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a driver and a build of ONNX Runtime for it."""
    folder = tmp_path / "stand-in"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(STAND_IN)
    shutil.copy(fake_driver(), folder / "libcuda.so.1")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    return folder


def refusal(place: RuntimePaths, model: Path) -> BriskError:
    with pytest.raises(BriskError) as caught, opened(place, describe(model)):
        pass
    assert "KIND_CPU" in str(caught.value) or "--gpus" in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


def test_without_the_provider_the_package_is_named_and_the_processor_as_another_way(
    gpu_place: RuntimePaths, quick: Path
) -> None:
    error = refusal(gpu_place, quick)
    assert isinstance(error, UnavailableError)
    text = str(error)
    assert "models on a GPU are computed by ONNX Runtime's CUDA provider" in text
    assert "pip install onnxruntime-gpu" in text


def test_without_a_driver_it_is_named(gpu_place: RuntimePaths, quick: Path, device: Path) -> None:
    (device / "libcuda.so.1").unlink()
    error = refusal(gpu_place, quick)
    assert isinstance(error, UnavailableError)
    assert "NVIDIA's driver is not here (libcuda.so.1" in str(error)


def test_a_device_that_is_not_there_is_named_with_how_many_are(
    gpu_place: RuntimePaths, quick: Path, device: Path
) -> None:
    error = refusal(RuntimePaths(gpu_place.directory, "cuda:3"), quick)
    assert isinstance(error, InvalidConfigurationError)
    assert "'cuda:3' is not here: the driver sees 1 CUDA devices" in str(error)


def test_one_worker_serves_all_classes_and_bad_requests_harm_nobody(
    gpu_place: RuntimePaths, quick: Path, device: Path
) -> None:
    with (
        opened(gpu_place, describe(quick)) as normal,
        opened(gpu_place, describe(quick, job_class="besteffort")) as other,
    ):
        worker = worker_of(gpu_place)
        for connection in (normal, other):
            np.testing.assert_array_equal(infer(connection, X), -X)
        error = submit(normal, X[:, :3].copy())[1].wait().error
        assert "expected float32 [n, 4]" in str(error)
        np.testing.assert_array_equal(infer(normal, X[:1].copy()), -X[:1])
        assert worker_of(gpu_place) == worker


def test_requests_of_a_worker_that_is_killed_are_answered_by_the_next(
    gpu_place: RuntimePaths, quick: Path, device: Path
) -> None:
    with opened(gpu_place, describe(quick)) as connection:
        np.testing.assert_array_equal(infer(connection, X), -X)
        pending = [submit(connection, X)[1] for _ in range(4)]
        os.kill(worker_of(gpu_place), signal.SIGKILL)
        for answer in pending:
            np.testing.assert_array_equal(answer.output(), -X)


def test_a_stub_waits_until_all_of_a_model_for_a_gpu_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(tmp_path / "runtime"))
    model = chain(tmp_path / "model.onnx")
    entry = tmp_path / "repository" / "m"
    for folder in (tmp_path / "published", entry / "1"):
        folder.mkdir(parents=True)
    try:
        with closing(RegistryServer(tmp_path / "published")) as registry:
            shutil.copy(publish_here(registry, model), entry / "1" / REMOTE_FILE)
            registry.hold("/m/model.onnx", model.stat().st_size // 2)
            assert not copy_of(find_model(entry, 1, {})).is_whole
            threading.Timer(1.0, registry.let_go).start()
            assert copy_of(find_model(entry, 1, {}, waits=True)).is_compared
    finally:
        end_courier()


def test_a_model_that_arrives_is_loaded_when_all_of_it_is_here(
    gpu_place: RuntimePaths, device: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(gpu_place.base))
    model = chain(tmp_path / "model.onnx")
    x = np.random.default_rng(3).standard_normal((2, 512)).astype("f4")
    (tmp_path / "published").mkdir()
    try:
        with closing(RegistryServer(tmp_path / "published")) as registry:
            remote = publish_here(registry, model)
            registry.hold("/m/model.onnx", model.stat().st_size // 2)
            local = resolve(remote)
            assert not copy_of(local).is_whole
            threading.Timer(2.0, registry.let_go).start()
            with opened(gpu_place, describe(local)) as connection:
                assert copy_of(local).is_compared
                expected = whole(model, {"x": x})["y"]
                np.testing.assert_allclose(infer(connection, x), expected, rtol=1e-3, atol=1e-4)
                (held,) = (each.is_held for each in kept_copies(tmp_path / "cache" / "remote"))
                assert held
    finally:
        end_courier()
