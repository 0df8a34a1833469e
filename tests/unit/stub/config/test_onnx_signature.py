"""Signatures read from a file's bytes agree with the onnx package; damage is told as such."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from brisk.errors import InvalidModelError
from brisk.pipelines import NetworkSignature, TensorType
from brisk.protocol.datatypes import BY_ELEMENT_NAME
from brisk.stub.config.signature import read_signature

NAMES = {
    **{
        getattr(TensorProto, element.upper()): element
        for element in BY_ELEMENT_NAME
        if element not in ("float32", "float64")
    },
    TensorProto.FLOAT: "float32",
    TensorProto.DOUBLE: "float64",
}


def expected_tensor(value: onnx.ValueInfoProto, *, is_optional: bool = False) -> TensorType | None:
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type") or tensor.elem_type not in NAMES:
        return None
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(
            size.dim_value if size.HasField("dim_value") and size.dim_value >= 0 else None
            for size in tensor.shape.dim
        )
    return TensorType(NAMES[tensor.elem_type], shape, is_optional)


def expected_signature(model: onnx.ModelProto) -> NetworkSignature | None:
    """None where Triton could not serve it."""
    constants = {constant.name for constant in model.graph.initializer}
    inputs = {
        v.name: expected_tensor(v, is_optional=v.name in constants) for v in model.graph.input
    }
    outputs = {v.name: expected_tensor(v) for v in model.graph.output}
    if None in (*inputs.values(), *outputs.values()):
        return None
    return NetworkSignature(
        {name: kind for name, kind in inputs.items() if kind},
        {name: kind for name, kind in outputs.items() if kind},
    )


def model_of(*shapes: list[int | str | None] | None) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(f"x{position}", TensorProto.FLOAT, shape)
        for position, shape in enumerate(shapes)
    ]
    weight = numpy_helper.from_array(np.ones((3, 5), np.float32), "w")
    inputs.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3, 5]))
    output = helper.make_tensor_value_info("y", TensorProto.BFLOAT16, None)
    nodes = [helper.make_node("Add", ["x0", "w"], ["y"])]
    return helper.make_model(helper.make_graph(nodes, "g", inputs, [output], [weight]))


def saved(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    return path


def test_the_models_of_all_onnx_node_cases_are_read_as_onnx_reads_them(
    tmp_path: Path, node_cases: list[Any]
) -> None:
    served = 0
    for case in node_cases:
        expected = expected_signature(case.model)
        path = saved(tmp_path, case.model.SerializeToString())
        if expected is None:
            with pytest.raises(InvalidModelError):
                read_signature(path)
        else:
            assert read_signature(path) == expected, case.name
            served += 1
    assert served > 1000


def test_every_kind_of_size_is_understood(tmp_path: Path) -> None:
    model = model_of([], [0, 7], ["n", None, 2**40], None, [-1, 3])
    signature = read_signature(saved(tmp_path, model.SerializeToString()))
    shapes = [kind.shape for kind in signature.inputs.values()]
    assert shapes == [(), (0, 7), (None, None, 2**40), None, (None, 3), (3, 5)]
    assert signature.outputs == {"y": TensorType("bfloat16", None)}
    assert signature == expected_signature(model)


def test_weights_are_optional_inputs_where_the_model_names_them_so(tmp_path: Path) -> None:
    model = model_of([1])
    signature = read_signature(saved(tmp_path, model.SerializeToString()))
    assert {name: kind.is_optional for name, kind in signature.inputs.items()} == {
        "x0": False,
        "w": True,
    }
    del model.graph.input[1]
    assert [*read_signature(saved(tmp_path, model.SerializeToString())).inputs] == ["x0"]


def test_a_model_cut_short_anywhere_is_refused_or_lacks_nothing(tmp_path: Path) -> None:
    """Fields behind the graph are not needed: a cut between two of them goes unnoticed."""
    data = model_of(["n", 3], [2]).SerializeToString()
    whole = read_signature(saved(tmp_path, data))
    refused = 0
    for length in range(len(data)):
        try:
            assert read_signature(saved(tmp_path, data[:length])) == whole
        except InvalidModelError:
            refused += 1
    assert refused > 0.9 * len(data)


def test_damaged_models_are_read_or_refused_and_nothing_else(tmp_path: Path) -> None:
    source = random.Random(11)
    data = model_of(["n", 3], [2]).SerializeToString()
    for _ in range(3000):
        damaged = bytearray(data)
        for _ in range(source.randint(1, 3)):
            damaged[source.randrange(len(damaged))] = source.randrange(256)
        try:
            read_signature(saved(tmp_path, bytes(damaged)))
        except InvalidModelError:
            continue


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"\0" * 100, ": not a complete ONNX model"),
        (b"PK\x03\x04 a zip file", ": not a complete ONNX model"),
        (b"<html>not found</html>", ": not a complete ONNX model"),
        (b"version https://git-lfs.github.com/spec/v1\n", ": not a complete ONNX model"),
        (b"\x08\x08", "it has no graph"),
        (b"\xff" * 40, "it is no protocol buffer"),
    ],
)
def test_what_is_no_model_is_named(tmp_path: Path, data: bytes, reason: str) -> None:
    with pytest.raises(InvalidModelError, match=reason):
        read_signature(saved(tmp_path, data))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match=r"absent\.onnx: cannot be read"):
        read_signature(tmp_path / "absent.onnx")
    with pytest.raises(InvalidModelError, match="cannot be read"):
        read_signature(tmp_path)
