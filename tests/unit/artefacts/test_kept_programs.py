"""Programs survive being written and read, whatever operators they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from brisk.artefacts.arrays import read_array, write_array
from brisk.artefacts.container import Container, ContainerWriter
from brisk.artefacts.programs import read_program, write_program
from brisk.errors import ArtefactError, BriskError
from brisk.graph.program import Program
from brisk.graph.reader import build_program
from unit.graph.graph_models import integers, model, random


def kept(program: Program, path: Path) -> Program:
    writer = ContainerWriter()
    content = write_program(program, writer)
    with path.open("wb") as file:
        writer.write(file, content, lambda: None)
    container = Container(path)
    return read_program(container.content, container)


def alike(left: Any, right: Any) -> bool:
    """Equality that looks into arrays, tells 1 from 1.0, and takes NaN for NaN."""
    if isinstance(left, np.ndarray):
        same = isinstance(right, np.ndarray) and left.dtype == right.dtype
        if left.dtype.kind in "OUS":
            return same and left.tolist() == right.tolist()
        return same and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, Sequence) and not isinstance(left, str):
        return len(left) == len(right) and all(map(alike, left, right))
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(alike(left[k], right[k]) for k in left)
    if hasattr(left, "__slots__") and hasattr(left, "__dataclass_fields__"):
        names = left.__dataclass_fields__
        return type(left) is type(right) and all(
            alike(getattr(left, name), getattr(right, name)) for name in names
        )
    return type(left) is type(right) and repr(left) == repr(right)


def test_a_program_with_fusions_and_weights_comes_back_whole(tmp_path: Path) -> None:
    made = model(
        "g (float[N,3,8,8] x) => (float[N,4,8,8] y) {\n"
        "c = Conv <kernel_shape=[3,3], pads=[1,1,1,1]> (x, w)\n r = Relu (c)\n"
        "y = Add (r, b) }",
        w=random(4, 3, 3, 3),
        b=random(4, 1, 1),
    )
    program = build_program(made)
    assert alike(kept(program, tmp_path / "p"), program)


def test_damaged_nodes_are_refused_by_whoever_reads_them(tmp_path: Path) -> None:
    made = model("g (float[2] x) => (float[2] y) {\n a = Relu (x)\n y = Add (a, x) }")
    fused = replace(build_program(made).layers[0], nodes=build_program(made).layers[0].nodes * 2)
    program = replace(build_program(made), layers=(fused,), last_use=((),))
    assert kept(program, tmp_path / "p").layers[0].nodes[1].operator == fused.nodes[1].operator
    data = bytearray((tmp_path / "p").read_bytes())
    data[-5] ^= 1  # the last blob
    (tmp_path / "p").write_bytes(data)
    container = Container(tmp_path / "p")
    nodes = read_program(container.content, container).layers[0].nodes
    with pytest.raises(ArtefactError, match="damaged"):
        len(nodes)


def test_bodies_of_control_flow_come_back(tmp_path: Path) -> None:
    made = model(
        "g (bool c, float[2] x) => (float[2] y) {\n"
        "y = If (c) <then_branch = t () => (float[2] a) { a = Mul (x, two) }, "
        "else_branch = e () => (float[2] b) { b = Neg (x) }> }",
        two=np.array([2.0, 3.0], np.float32),
    )
    program = build_program(made)
    assert alike(kept(program, tmp_path / "p"), program)


def test_every_eighth_node_case_of_onnx_comes_back(tmp_path: Path, node_cases: list[Any]) -> None:
    count = 0
    for case in node_cases[::8]:
        try:
            program = build_program(case.model)
        except BriskError:
            continue
        assert alike(kept(program, tmp_path / "p"), program), case.name
        count += 1
    assert count > 150


def test_strings_and_four_bit_integers_come_back(tmp_path: Path) -> None:
    import ml_dtypes

    arrays = [
        np.array(["a", "", "\udc80ü"], object).reshape(3, 1),
        np.arange(-8, 8).astype(ml_dtypes.int4),
        np.array(float("nan"), ml_dtypes.bfloat16),
        np.zeros((0, 3), np.float32),
    ]
    writer = ContainerWriter()
    records = [write_array(array, writer) for array in arrays]
    with (tmp_path / "a").open("wb") as file:
        writer.write(file, records, lambda: None)
    container = Container(tmp_path / "a")
    assert alike([read_array(record, container) for record in container.content], arrays)


def test_an_array_left_out_is_poisoned_and_takes_no_memory(tmp_path: Path) -> None:
    writer = ContainerWriter()
    with (tmp_path / "a").open("wb") as file:
        writer.write(file, None, lambda: None)
    array = read_array(["float32", [1000, 1000], None], Container(tmp_path / "a"))
    assert array.shape == (1000, 1000)
    assert np.isnan(array[3, 4])
    assert array.strides == (0, 0)


@pytest.mark.parametrize(
    "record", [["float32", [3], 0], ["float32", [-2], 0], ["nonsense", [2], 0], ["int8", [9], 1]]
)
def test_an_array_that_does_not_fit_its_blob_is_refused(tmp_path: Path, record: Any) -> None:
    writer = ContainerWriter()
    writer.add(np.zeros(8, np.uint8))
    with (tmp_path / "a").open("wb") as file:
        writer.write(file, None, lambda: None)
    with pytest.raises(ArtefactError):
        read_array(record, Container(tmp_path / "a"))


def test_a_record_that_is_no_program_is_refused(tmp_path: Path) -> None:
    writer = ContainerWriter()
    good = write_program(build_program(_identity()), writer)
    with (tmp_path / "a").open("wb") as file:
        writer.write(file, None, lambda: None)
    container = Container(tmp_path / "a")
    for name in good:
        for wrong in ({k: v for k, v in good.items() if k != name}, {**good, name: 7}):
            if name == "name" and wrong is not good and "name" in wrong:
                continue  # any JSON value serves as a name
            with pytest.raises(ArtefactError):
                read_program(wrong, container)


def _identity() -> onnx.ModelProto:
    return model("g (float[2] x) => (float[2] y) { y = Reshape (x, s) }", s=integers(2))
