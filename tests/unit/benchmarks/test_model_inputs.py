"""Inputs for any ONNX file: generated, given, or a message that names what is wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from brisk_bench.engines.model_inputs import make_inputs, read_given, were_given
from brisk_bench.harness.command_line import UnusableArgumentError


def write(file: Path, inputs: Sequence[onnx.ValueInfoProto]) -> Path:
    """A model that passes its inputs on."""
    nodes = [helper.make_node("Identity", [each.name], [f"{each.name}_out"]) for each in inputs]
    outputs = [onnx.ValueInfoProto(name=f"{each.name}_out", type=each.type) for each in inputs]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", inputs, outputs)), file)
    return file


def one(file: Path, kind: int, shape: Sequence[int | str | None] | None) -> Path:
    return write(file, [helper.make_tensor_value_info("x", kind, shape)])


@pytest.mark.parametrize("open_size", [-1, 0, "side", None], ids=str)
def test_a_size_that_the_file_leaves_open_is_symbolic(
    open_size: int | str | None, tmp_path: Path
) -> None:
    file = one(tmp_path / "m.onnx", TensorProto.FLOAT, [open_size, 3, open_size, 8])
    assert make_inputs(file)["x"].shape == (1, 3, 224 if open_size != "side" else 1, 8)


def test_a_size_has_one_value_wherever_its_name_stands(tmp_path: Path) -> None:
    file = write(
        tmp_path / "m.onnx",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "time"]),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, "batch", 4]),
        ],
    )
    shapes = {name: array.shape for name, array in make_inputs(file).items()}
    assert shapes == {"x": (1, 128), "state": (2, 1, 4)}
    assert make_inputs(file, read_given(["state:shape=2,3,4"]))["state"].shape == (2, 3, 4)


def test_open_channels_are_those_that_the_convolution_wants(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [-1, -1, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_tensor("w", TensorProto.FLOAT, [2, 5, 1, 1], np.zeros(10))],
    )
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    assert make_inputs(tmp_path / "m.onnx")["x"].shape == (1, 5, 8, 8)


def test_an_input_without_a_shape_is_named_with_what_to_say_of_it(tmp_path: Path) -> None:
    file = one(tmp_path / "m.onnx", TensorProto.FLOAT, None)
    with pytest.raises(UnusableArgumentError, match=r"'x' declares no shape.*--input x:shape="):
        make_inputs(file)
    assert make_inputs(file, read_given(["x:shape=2,3"]))["x"].shape == (2, 3)


@pytest.mark.parametrize(
    ("kind", "kinds", "values"),
    [
        (TensorProto.BOOL, "b", {True, False}),
        (TensorProto.INT64, "i", {0, 1}),
        (TensorProto.UINT16, "u", {0, 1}),
        (TensorProto.STRING, "U", {"word"}),
    ],
)
def test_what_is_no_float_is_small_enough_for_any_table(
    kind: int, kinds: str, values: set[object], tmp_path: Path
) -> None:
    found = make_inputs(one(tmp_path / "m.onnx", kind, [40]))["x"]
    assert found.dtype.kind == kinds
    assert set(found.tolist()) <= values


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.COMPLEX64])
def test_floats_are_of_the_declared_width(kind: int, tmp_path: Path) -> None:
    found = make_inputs(one(tmp_path / "m.onnx", kind, [64]))["x"]
    assert found.dtype == helper.tensor_dtype_to_np_dtype(kind)
    assert np.abs(found).max() > 0.5


def test_bytes_of_images_take_every_value_and_masks_are_ones(tmp_path: Path) -> None:
    file = write(
        tmp_path / "m.onnx",
        [
            helper.make_tensor_value_info("image", TensorProto.UINT8, [1, 64, 64]),
            helper.make_tensor_value_info("mask", TensorProto.INT64, [1, 4]),
        ],
    )
    found = make_inputs(file)
    assert found["image"].max() > 200
    assert found["mask"].tolist() == [[1, 1, 1, 1]]


def test_types_that_numpy_does_not_have_are_named(tmp_path: Path) -> None:
    file = one(tmp_path / "m.onnx", TensorProto.BFLOAT16, [4])
    with pytest.raises(UnusableArgumentError, match="'x' is of BFLOAT16"):
        make_inputs(file)


def test_an_input_that_is_no_tensor_is_named(tmp_path: Path) -> None:
    file = write(
        tmp_path / "m.onnx",
        [helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [1])],
    )
    with pytest.raises(UnusableArgumentError, match="'x' is no tensor"):
        make_inputs(file)


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    said = r"m\.onnx: not a complete ONNX model: it is no protocol buffer"
    with pytest.raises(UnusableArgumentError, match=said):
        make_inputs(tmp_path / "m.onnx")
    with pytest.raises(UnusableArgumentError, match="cannot be read: No such file"):
        make_inputs(tmp_path / "absent.onnx")


def test_given_numbers_and_arrays_take_the_place_of_generated_ones(tmp_path: Path) -> None:
    file = one(tmp_path / "m.onnx", TensorProto.INT64, [])
    assert make_inputs(file, read_given(["x=16000"]))["x"].tolist() == 16000
    np.save(tmp_path / "x.npy", np.array(7))
    assert make_inputs(file, read_given([f"x={tmp_path / 'x.npy'}"]))["x"].tolist() == 7
    np.savez(tmp_path / "all.npz", x=np.array(9))
    assert make_inputs(file, read_given([str(tmp_path / "all.npz")]))["x"].tolist() == 9


def test_a_file_beside_the_model_holds_its_inputs(tmp_path: Path) -> None:
    file = one(tmp_path / "m.onnx", TensorProto.FLOAT, [-1])
    assert not were_given(file, read_given([]))
    np.savez(tmp_path / "m.inputs.npz", x=np.array([1.0, 2.0]))
    found = make_inputs(file)["x"]
    assert (found.tolist(), found.dtype) == ([1.0, 2.0], np.float32)
    assert were_given(file, read_given([]))


def test_given_inputs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file = one(tmp_path / "m.onnx", TensorProto.INT64, [2])
    np.savez(tmp_path / "m.inputs.npz", x=np.array([1, 2, 3]))
    with pytest.raises(
        UnusableArgumentError, match=r"'x' has shape \[2\]; one of \[3\] was given"
    ):
        make_inputs(file)
    np.savez(tmp_path / "m.inputs.npz", x=np.array([0.5, 1.0]))
    with pytest.raises(UnusableArgumentError, match="'x' is of int64, not of float64"):
        make_inputs(file)
    (tmp_path / "m.inputs.npz").unlink()
    with pytest.raises(UnusableArgumentError, match="no input 'z'; it has: x"):
        make_inputs(file, read_given(["z=1"]))


@pytest.mark.parametrize("text", ["x", "x=three", "x:shape=1,-2", "x:shape=a", "none.npz"])
def test_an_option_of_no_known_form_is_refused_by_name(text: str) -> None:
    with pytest.raises(UnusableArgumentError, match=re.escape(text)):
        read_given([text])
