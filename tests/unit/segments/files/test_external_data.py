"""Weights in other files lie where ONNX Runtime finds them: a length need not be told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from brisk.errors import InvalidModelError
from support.models.segment_models import by_segments, info, save, source_of, whole

ROWS = np.random.default_rng(3).standard_normal((5, 64)).astype(np.float32)


def kept_outside(tensor: TensorProto, offset: int, length: str | None) -> TensorProto:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": "weights.bin", "offset": str(offset), "length": length}
    for key, value in entries.items():
        if value is not None:
            tensor.external_data.add(key=key, value=value)
    return tensor


def write(folder: Path, length: str | None) -> Path:
    """A model of a large, a four-bit and a small tensor in one file, each of which begins
    16384 bytes behind the last one."""
    random = np.random.default_rng(5)
    floats = random.standard_normal((64, 64)).astype(np.float32).tobytes()
    nibbles = random.bytes(63 * 65 // 2 + 1)
    added = random.standard_normal(65).astype(np.float32).tobytes()
    (folder / "weights.bin").write_bytes(
        b"".join(each.ljust(16384, b"\1") for each in (floats, nibbles, added))
    )
    tensors = [
        TensorProto(name=name, data_type=kind, dims=dims)
        for name, kind, dims in (
            ("w", TensorProto.FLOAT, [64, 64]),
            ("q", TensorProto.INT4, [63, 65]),
            ("b", TensorProto.FLOAT, [65]),
        )
    ]
    for number, tensor in enumerate(tensors):
        kept_outside(tensor, number * 16384, length)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Slice", ["h", "start", "end", "axis"], ["cut"]),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["d"]),
        helper.make_node("MatMul", ["cut", "d"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    values = {"start": [0], "end": [63], "axis": [1]}
    weights = {name: np.array(value, np.int64) for name, value in values.items()}
    weights["scale"] = np.array(0.1, np.float32)
    path = folder / "model.onnx"
    save(path, nodes, [info("x", "n", 64)], [info("y", "n", 65)], weights, domains={"": 21}, ir=10)
    model = onnx.load(path)
    model.graph.initializer.extend(tensors)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("length", [None, "0"])
def test_a_length_that_is_not_told_is_what_the_shape_needs(
    length: str | None, tmp_path: Path
) -> None:
    path = write(tmp_path, length)
    expected = whole(path, {"x": ROWS})["y"]
    for warm in (False, True):
        answers = by_segments(source_of(path), {"x": ROWS}, warm=warm)
        np.testing.assert_allclose(answers["y"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [None, "0"])
def test_a_file_that_ends_before_the_shape_does_is_refused(
    length: str | None, tmp_path: Path
) -> None:
    path = write(tmp_path, length)
    content = (tmp_path / "weights.bin").read_bytes()
    (tmp_path / "weights.bin").write_bytes(content[: 16384 + 2047])
    with pytest.raises(InvalidModelError, match=r"needs bytes 16384 to 18432 .* ends at 18431"):
        source_of(path)
