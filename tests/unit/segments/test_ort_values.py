"""Arrays and OrtValues of types that numpy has only through ``ml_dtypes``, or that share bytes;
runs by arrays in a single call, which answer as any run does; and weights that warm sessions are
given as tensors in the mapped file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from brisk.errors import InvalidRequestError
from brisk.segments.frame import control, run_in_one, run_serially
from brisk.segments.model import model_file
from brisk.segments.model.sources import BareModel
from brisk.segments.onnxruntime import IN_PLACE_BYTES, Weight, onnxruntime
from brisk.segments.program import SegmentProgram
from brisk.segments.starting import open_warm_program
from brisk.segments.values import to_array, to_ort_value
from support.models.segment_models import chain, info, save, source_of, whole

TEXTS = TensorProto.STRING
RANDOM = np.random.default_rng(0)
OPTIONS = control().options(shrinks_arena=False)
ERRORS = tuple(
    getattr(onnxruntime().capi.onnxruntime_pybind11_state, name)
    for name in ("InvalidArgument", "Fail")
)


@pytest.mark.parametrize(
    "dtype",
    [np.uint8, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2],
)
def test_a_value_comes_back_as_the_array_that_it_was_made_of(dtype: type) -> None:
    array = np.array([[1, 2], [0, 4]]).astype(dtype)
    found = to_array(to_ort_value(array))
    assert found.dtype == array.dtype, "ONNX Runtime says uint8 of float8_e4m3fn"
    assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
def test_types_of_several_elements_in_a_byte_are_refused_and_not_read_beyond_their_end(
    dtype: type,
) -> None:
    array = np.array([1, 2, 3, 4]).astype(dtype)
    with pytest.raises(TypeError, match=r"a tensor of u?int4 has no array: a byte holds several"):
        to_ort_value(array)
    make = onnxruntime().capi._pybind_state.OrtValue.ortvalue_from_numpy_with_onnx_type
    element = {ml_dtypes.uint4: 21, ml_dtypes.int4: 22}[dtype]
    value = make(np.zeros(64, np.uint8), element)
    with pytest.raises(TypeError, match="a byte holds several"):
        to_array(value)


def program(
    folder: Path,
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[onnx.ValueInfoProto],
    kind: int = TensorProto.FLOAT,
) -> SegmentProgram:
    inputs = [info("a", "n", 2, kind=kind), info("b", "n", 2, kind=kind)]
    return open_warm_program(BareModel(save(folder / "m.onnx", nodes, inputs, outputs), 1))


def test_its_outputs_are_those_that_are_asked_for(tmp_path: Path) -> None:
    made = program(
        tmp_path,
        [helper.make_node("Sub", ["a", "b"], ["d"]), helper.make_node("Add", ["a", "b"], ["s"])],
        [info("d", "n", 2), info("s", "n", 2)],
    )
    run = run_in_one(made)
    assert run is not None
    a, b = np.random.default_rng(0).standard_normal((2, 3, 2)).astype("f4")
    for asked in (["s"], ["s", "d"], ["d", "s"]):
        found = run(asked, {"b": b, "a": a}, OPTIONS)
        expected = run_serially(made, {"a": a, "b": b}, asked)
        assert len(found) == len(asked)
        for name, array in zip(asked, found, strict=True):
            np.testing.assert_array_equal(array, expected[name])


def test_what_does_not_fit_is_refused_by_onnxruntime(tmp_path: Path) -> None:
    made = program(tmp_path, [helper.make_node("Add", ["a", "b"], ["s"])], [info("s", "n", 2)])
    run = run_in_one(made)
    assert run is not None
    fits = np.ones((3, 2), "f4")
    for inputs in (
        {"a": fits, "b": np.ones((3, 3), "f4")},
        {"a": fits, "b": np.ones((3, 2), "f8")},
        {"a": fits, "b": np.ones((2, 2), "f4")},
        {"a": fits, "b": np.ones(2, "f4")},
        {"a": fits},
        {"a": fits, "b": fits, "c": fits},
    ):
        with pytest.raises(ERRORS):
            run(["s"], inputs, OPTIONS)
    np.testing.assert_array_equal(run(["s"], {"a": fits, "b": fits}, OPTIONS)[0], fits + fits)


def test_scalars_are_taken_as_entries_have_them(tmp_path: Path) -> None:
    made = open_warm_program(
        BareModel(
            save(
                tmp_path / "m.onnx",
                [helper.make_node("Mul", ["a", "b"], ["s"])],
                [info("a", "n", 2), info("b")],
                [info("s", "n", 2)],
            ),
            1,
        )
    )
    run = run_in_one(made)
    assert run is not None
    a = np.ones((3, 2), "f4")
    for b in (np.full((1, 1), 3, "f4"), np.full(1, 3, "f4"), np.full((), 3, "f4")):
        np.testing.assert_array_equal(run(["s"], {"a": a, "b": b}, OPTIONS)[0], 3 * a)
    with pytest.raises(InvalidRequestError, match="'b' is missing"):
        run(["s"], {"a": a}, OPTIONS)


def test_strings_several_segments_and_inputs_that_are_outputs_take_the_longer_way(
    tmp_path: Path, short_segments: None
) -> None:
    texts = program(
        tmp_path,
        [helper.make_node("Identity", ["a"], ["c"]), helper.make_node("Identity", ["b"], ["d"])],
        [info("c", "n", 2, kind=TEXTS), info("d", "n", 2, kind=TEXTS)],
        TEXTS,
    )
    assert run_in_one(texts) is None
    several = open_warm_program(BareModel(chain(tmp_path / "chain.onnx"), 1))
    assert len(several.plan.segments) > 1
    assert run_in_one(several) is None
    handed_on = program(
        tmp_path,
        [helper.make_node("Add", ["a", "b"], ["s"])],
        [info("a", "n", 2), info("s", "n", 2)],
    )
    a = np.ones((1, 2), "f4")
    run = run_in_one(handed_on)
    if run is not None:  # as ONNX Runtime makes an output of its own of the input
        (found,) = run(["a"], {"a": a, "b": a}, OPTIONS)
    else:
        found = run_serially(handed_on, {"a": a, "b": a}, ["a"])["a"]
    np.testing.assert_array_equal(found, a)


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
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Reshape", ["rows", "shape"], ["image"]),
        helper.make_node("Conv", ["image", "kernel"], ["features"]),
        helper.make_node("Relu", ["features"], ["positive"]),
        helper.make_node("Flatten", ["positive"], ["flat"]),
        helper.make_node("MatMul", ["flat", "left"], ["hidden"]),
        helper.make_node("Gemm", ["hidden", "right"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["sum"]),
        helper.make_node("Cast", ["half"], ["whole"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["sum", "whole"], ["y"]),
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
        helper.make_node("DequantizeLinear", ["packed", "scale"], ["wide"]),
        helper.make_node("MatMul", ["x", "wide"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "plain"], ["y"]),
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
