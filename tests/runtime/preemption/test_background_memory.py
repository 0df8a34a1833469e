"""A best-effort model that takes too much memory gets an error; nobody else notices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from brisk.errors import InternalError, InvalidRequestError, UnavailableError
from brisk.protocol.runtime_paths import RuntimePaths
from brisk.runtime.memory import shortage
from support.models.segment_models import info, save
from support.runtime.runtime_process import (
    background_worker_of,
    describe,
    infer,
    opened,
    submit,
)

ROWS = np.arange(40, dtype=np.float32).reshape(10, 4)


@pytest.fixture
def greedy(tmp_path: Path) -> Path:
    """y = x, by way of 400 KB for every row and column."""
    nodes = [
        helper.make_node("Tile", ["x", "repeats"], ["large"]),
        helper.make_node("Neg", ["large"], ["turned"]),
        helper.make_node("Neg", ["turned"], ["back"]),
        helper.make_node("Slice", ["back", "starts", "ends", "axes"], ["y"]),
    ]
    given = {"repeats": [1, 100_000], "starts": [0], "ends": [4], "axes": [1]}
    constants = {name: np.array(value, np.int64) for name, value in given.items()}
    ends = [info("x", "n", 4)], [info("y", "n", 4)]
    return save(tmp_path / "greedy.onnx", nodes, *ends, constants)


@pytest.fixture
def bounded(place: RuntimePaths, monkeypatch: pytest.MonkeyPatch) -> RuntimePaths:
    monkeypatch.setenv("BRISK_BACKGROUND_MIB", "128")
    return place


def test_a_request_beyond_the_bound_fails_alone(
    bounded: RuntimePaths, greedy: Path, quick: Path
) -> None:
    with opened(bounded, describe(quick)) as other, opened(bounded, describe(greedy)) as both:
        small, large = np.ones((2, 4), np.float32), np.ones((100, 4), np.float32)
        np.testing.assert_array_equal(submit(both, small, "besteffort")[1].output(), small)
        worker = background_worker_of(bounded)
        error = submit(both, large, "besteffort")[1].wait().error
        assert isinstance(error, UnavailableError)
        assert "request of model 'greedy': best-effort work may take 128 MiB" in str(error)
        joined = submit(both, large, "besteffort", requests=50)[1].wait().error
        assert isinstance(joined, (InternalError, InvalidRequestError)), "each of them may fit"
        np.testing.assert_array_equal(submit(both, small, "besteffort")[1].output(), small)
        assert background_worker_of(bounded) == worker, "it has not died of it"
        np.testing.assert_array_equal(infer(both, large), large)
        np.testing.assert_array_equal(infer(other, ROWS), -ROWS)


def test_a_model_too_large_for_the_background_is_refused_there_and_tried_again(
    bounded: RuntimePaths, tmp_path: Path
) -> None:
    path = tmp_path / "large.onnx"
    weights = np.zeros((4, 10_000_000), np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "weights"], ["wide"]),
        helper.make_node("ReduceSum", ["wide"], ["y"], keepdims=1),
    ]
    save(
        path,
        nodes,
        [info("x", "n", 4)],
        [info("y", 1, 1)],
        {"weights": weights},
        save_as_external_data=True,
        location="weights.bin",
    )
    with opened(bounded, describe(path)) as connection:
        for _ in range(2):
            error = submit(connection, ROWS, "besteffort")[1].wait().error
            assert isinstance(error, UnavailableError), error
            assert "loading model 'large'" in str(error)
        np.testing.assert_array_equal(infer(connection, ROWS), np.zeros((1, 1)))


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:128] DefaultCPUAllocator: can't allocate memory"
        ),
        RuntimeError("std::bad_alloc"),
        RuntimeError(
            "[ONNXRuntimeError] Failed to allocate memory for requested buffer of size 9"
        ),
        InternalError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    ],
)
def test_a_shortage_is_told_from_other_errors_however_deep(error: Exception) -> None:
    outer = InvalidRequestError("segment 3 failed")
    outer.__cause__ = error
    for seen in (error, outer):
        told = shortage(seen, "it")
        assert isinstance(told, UnavailableError)
        assert str(told) == "not enough memory for it: the device has no more"
    assert shortage(InvalidRequestError("input 'x' is missing"), "it") is None
