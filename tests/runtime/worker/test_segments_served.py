"""A real runtime whose models ONNX Runtime computes, by segments."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from brisk.errors import InvalidModelError
from brisk.protocol.runtime_paths import RuntimePaths
from support.models.segment_models import chain, info, save, whole
from support.runtime.runtime_process import (
    SLOW_INPUT,
    describe,
    end_processes,
    infer,
    opened,
    quick_model,
    submit,
)

ROWS = np.random.default_rng(5).standard_normal((3, 512)).astype(np.float32)


@pytest.fixture(scope="module")
def onnxruntime_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimePaths]:
    """The place of a runtime that computes every model by ONNX Runtime, for all tests here."""
    parent = Path(tempfile.mkdtemp(prefix="brisk-"))
    place = RuntimePaths(parent / "runtime", "cpu")
    model = quick_model(tmp_path_factory.mktemp("shared") / "shared.onnx")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("BRISK_THREADS", "1")
        environment.setenv("BRISK_ARTEFACTS", "off")
        with opened(place, describe(model)):
            yield place
    end_processes(place)
    shutil.rmtree(parent)


def contributed(path: Path) -> Path:
    """y = x ^ 2 by an operator that only ONNX Runtime has."""
    nodes = [helper.make_node("TransposeMatMul", ["x", "x"], ["y"], domain="com.microsoft")]
    nodes[0].attribute.append(helper.make_attribute("transB", 1))
    shapes = [info("x", 4, 4)], [info("y", 4, 4)]
    return save(path, nodes, *shapes, domains={"": 17, "com.microsoft": 1})


def test_an_operator_that_only_onnxruntime_has_is_served(
    place: RuntimePaths, tmp_path: Path
) -> None:
    value = np.arange(16, dtype=np.float32).reshape(4, 4)
    with opened(place, describe(contributed(tmp_path / "model.onnx"))) as connection:
        np.testing.assert_allclose(infer(connection, value), value @ value.T)


def test_what_it_does_not_know_is_refused_with_its_reason(
    place: RuntimePaths, tmp_path: Path
) -> None:
    nodes = [helper.make_node("Nonesuch", ["x"], ["y"], name="odd")]
    model = save(tmp_path / "model.onnx", nodes, [info("x", "n")], [info("y", "n")])
    with (
        pytest.raises(
            InvalidModelError, match=r"ONNX Runtime .* cannot load segment 0 .*Nonesuch"
        ),
        opened(place, describe(model)),
    ):
        pass


def test_answers_before_and_after_the_exchange_are_onnxruntime_s(
    onnxruntime_place: RuntimePaths, tmp_path: Path
) -> None:
    path = chain(tmp_path / "model.onnx", layers=40)
    expected = whole(path, {"x": ROWS})["y"]
    with opened(onnxruntime_place, describe(path)) as connection:
        until_s = time.monotonic() + 3.0  # the exchange comes after a second at the latest
        count = 0
        while time.monotonic() < until_s:
            np.testing.assert_allclose(infer(connection, ROWS), expected, rtol=1e-3, atol=1e-4)
            count += 1
    assert count > 10


def test_a_realtime_request_interrupts_a_long_model_between_its_segments(
    onnxruntime_place: RuntimePaths, tmp_path: Path, slow: Path
) -> None:
    with (
        opened(onnxruntime_place, describe(slow)) as long,
        opened(onnxruntime_place, describe(quick_model(tmp_path / "urgent.onnx"))) as urgent,
    ):
        small = np.ones((1, 4), np.float32)
        infer(urgent, small)
        expected = submit(long, SLOW_INPUT)[1].output()
        answer = submit(long, SLOW_INPUT)[1]
        time.sleep(0.1)
        assert not answer.has_come
        np.testing.assert_array_equal(submit(urgent, small, "realtime")[1].output(), -small)
        assert not answer.has_come
        np.testing.assert_allclose(answer.output(), expected, 1e-4, 1e-6)


def test_requests_of_a_model_are_joined(onnxruntime_place: RuntimePaths, tmp_path: Path) -> None:
    path = chain(tmp_path / "model.onnx", layers=40)
    single = {row: whole(path, {"x": ROWS[row : row + 1]})["y"] for row in range(3)}
    described = describe(path, max_batch_size=8, batching=True)
    with opened(onnxruntime_place, described) as connection:
        sent = [(row % 3, submit(connection, ROWS[row % 3 : row % 3 + 1])[1]) for row in range(30)]
        for row, answer in sent:
            np.testing.assert_allclose(answer.output(), single[row], rtol=1e-3, atol=1e-4)
