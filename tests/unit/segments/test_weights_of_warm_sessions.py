"""Weights that warm sessions are given as tensors in the mapped file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from brisk.segments.frame import run_serially
from brisk.segments.model import model_file
from brisk.segments.onnxruntime import IN_PLACE_BYTES, Weight
from brisk.segments.starting import open_warm_program
from support.models.segment_models import info, save, source_of, whole

node = helper.make_node
RANDOM = np.random.default_rng(0)


def weight(*shape: int, dtype: type = np.float32) -> np.ndarray:
    """Return a weight that is large enough to stay in the file."""
    array = (RANDOM.standard_normal(shape) / 8).astype(dtype)
    assert array.nbytes >= IN_PLACE_BYTES
    return array


def test_a_warm_session_keeps_none_of_the_memory_that_its_weights_lay_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may be unmapped, or written to, once the session is made."""
    weights = {
        "table": weight(64, 48),  # read as it is
        "kernel": weight(32, 3, 4, 4),  # stored in another layout, or not
        "left": weight(480, 64),  # packed
        "right": weight(64, 32),
        "bias": weight(32, 32),
        "half": weight(32, 64, dtype=ml_dtypes.bfloat16),
    }
    nodes = [
        node("Gather", ["table", "ids"], ["rows"]),
        node("Reshape", ["rows", "shape"], ["image"]),
        node("Conv", ["image", "kernel"], ["features"]),
        node("Relu", ["features"], ["positive"]),
        node("Flatten", ["positive"], ["flat"]),
        node("MatMul", ["flat", "left"], ["hidden"]),
        node("Gemm", ["hidden", "right"], ["product"]),
        node("Add", ["product", "bias"], ["sum"]),
        node("Cast", ["half"], ["whole"], to=TensorProto.FLOAT),
        node("MatMul", ["sum", "whole"], ["y"]),
    ]
    path = save(
        tmp_path / "m.onnx",
        nodes,
        [info("ids", 3, kind=TensorProto.INT64)],
        [info("y", 32, 64)],
        {**weights, "shape": np.array([1, 3, 8, 6])},
    )
    inputs = {"ids": np.array([1, 60, 7])}
    lent: list[np.ndarray] = []

    def lend(original: Weight) -> object:
        lent.append(np.array(original.data))
        return show(replace(original, data=lent[-1]))

    show = model_file.value_in_place
    monkeypatch.setattr(model_file, "value_in_place", lend)
    program = open_warm_program(source_of(path))
    assert len(lent) == len(weights)
    before = run_serially(program, inputs)
    for array in lent:
        array[:] = 0xFF
    np.testing.assert_array_equal(run_serially(program, inputs)["y"], before["y"])
    np.testing.assert_array_equal(before["y"], whole(path, inputs)["y"])


def test_weights_of_which_a_byte_holds_several_are_given_with_others(tmp_path: Path) -> None:
    packed = RANDOM.integers(-8, 8, (128, 128)).astype(ml_dtypes.int4)
    weights = {"packed": packed, "plain": weight(128, 32), "scale": np.float32(0.1)}
    nodes = [
        node("DequantizeLinear", ["packed", "scale"], ["wide"]),
        node("MatMul", ["x", "wide"], ["hidden"]),
        node("MatMul", ["hidden", "plain"], ["y"]),
    ]
    path = save(
        tmp_path / "m.onnx",
        nodes,
        [info("x", "n", 128)],
        [info("y", "n", 32)],
        weights,
        {"": 21},
        ir=10,
    )
    inputs = {"x": RANDOM.standard_normal((3, 128)).astype("f4")}
    program = open_warm_program(source_of(path))
    np.testing.assert_array_equal(run_serially(program, inputs)["y"], whole(path, inputs)["y"])
