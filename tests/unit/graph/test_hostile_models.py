"""Models made to harm: refused with an error that names what is wrong, in bounded memory."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from brisk.errors import InvalidModelError
from brisk.graph.files.tensors import read_tensor
from brisk.segments.model.cutting import cut_points
from brisk.segments.model.graph_names import calls_of
from brisk.segments.model.sources import BareModel

Constants = dict[str, np.ndarray]

MEMORY_BYTES = 3 << 30
"""Address space of the process that reads a hostile model; torch alone maps more than 1 GiB."""


def refused(path: Path) -> None:
    """Check the model like a load does."""
    BareModel(path, 1).check()


def write(
    path: Path, nodes: list[onnx.NodeProto], constants: Constants | None = None
) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    answer = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weights = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "hostile", [x], [answer], weights)
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.save(model, path)
    return model


def add(constant: str) -> onnx.NodeProto:
    return helper.make_node("Add", ["x", constant], ["y"])


def test_what_would_fill_the_memory_is_not_kept_track_of(tmp_path: Path) -> None:
    """Forty tensors that each join the one before with itself; by shape inference alone."""
    doubling = [
        helper.make_node("Concat", [f"c{step}"] * 2, [f"c{step + 1}"], axis=0)
        for step in range(40)
    ]
    write(tmp_path / "model.onnx", [*doubling, add("c40")], {"c0": np.ones(1024, np.int64)})
    program = (
        f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_BYTES},) * 2); "
        "import runpy; runpy.run_module('brisk.segments.model.output_types', {}, '__main__')"
    )
    child = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "model.onnx")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert child.returncode == 0, child.stderr
    assert '"y"' in child.stdout


@pytest.mark.parametrize("sizes", [[2**40], [2**17, 2**17], [-1, 2**62, 2**62]])
def test_a_tensor_that_claims_more_than_it_has_is_refused(
    sizes: list[int], tmp_path: Path
) -> None:
    model = write(tmp_path / "model.onnx", [add("w")])
    tensor = model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, raw_data=b"1234")
    tensor.dims.extend(sizes)
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(InvalidModelError, match="cannot load segment 0"):
        refused(tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([2**62] * 100_000, "has 100000 dimensions, expected at most 64"),
        ([2**62] * 240, "has 240 dimensions, expected at most 64"),
        (
            [2**62, 2**62],
            r"of shape \[4611686018427387904, 4611686018427387904\] has more elements",
        ),
        ([-1, 2**62], r"has a negative dimension: \[-1, 4611686018427387904\]"),
        ([0, 2**62, 2**62], "needs 0 bytes, the file holds 8192"),
    ],
    ids=["dimensions", "digits", "elements", "negative", "empty"],
)
def test_a_large_tensor_of_a_shape_that_none_has_is_refused_at_once_by_name(
    sizes: list[int], words: str, tmp_path: Path
) -> None:
    """A product of 100,000 sizes takes 28 s, in which no other thread runs."""
    path = tmp_path / "model.onnx"
    model = write(path, [add("w")])
    tensor = model.graph.initializer.add(
        name="w", data_type=TensorProto.FLOAT, raw_data=bytes(8192)
    )
    tensor.dims.extend(sizes)
    onnx.save(model, path)
    started_s = time.process_time()
    with pytest.raises(InvalidModelError, match=f"model.onnx: tensor 'w' (of shape .* )?{words}"):
        refused(path)
    with pytest.raises(InvalidModelError, match=f"tensor 'w' (of shape .* )?{words}"):
        read_tensor(tensor)
    assert time.process_time() - started_s < 5


@pytest.mark.parametrize("sizes", [[2**20, 2**20], [2**62, 2**62], [-5, 3]])
def test_a_sparse_tensor_that_explodes_is_refused(sizes: list[int], tmp_path: Path) -> None:
    model = write(tmp_path / "model.onnx", [add("w")])
    values = numpy_helper.from_array(np.ones(1, np.float32), "w")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "indices")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, sizes))
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(InvalidModelError, match="cannot load segment 0"):
        refused(tmp_path / "model.onnx")


def test_functions_that_call_one_another_are_walked_once() -> None:
    """Once for each of them took minutes, in which other threads waited for the interpreter."""
    model = onnx.ModelProto()
    for number in range(10_000):
        function = model.functions.add(domain="own", name=f"f{number}")
        called, domain = (f"f{number - 1}", "own") if number else ("QuantizeLinear", "")
        function.node.add(op_type=called, domain=domain)
    for called in ("f9999", "absent"):
        model.graph.node.add(op_type=called, domain="own")
    started_s = time.process_time()
    assert calls_of(model, ("QuantizeLinear",)) == {0}
    assert time.process_time() - started_s < 5


@pytest.mark.parametrize("is_wide", [True, False])
def test_graphs_of_very_many_nodes_are_cut_at_once(is_wide: bool) -> None:
    """Wide: all values live to the end. Long: each node alone is predicted to take too long."""
    count = 10_000
    reads = ["x"] * count if is_wide else ["x", *(f"v{number}" for number in range(count - 1))]
    model = onnx.ModelProto(ir_version=9, opset_import=[helper.make_opsetid("", 18)])
    for number, name in enumerate(reads):
        model.graph.node.add(op_type="Exp", input=[name], output=[f"v{number}"])
    last = [f"v{number}" for number in range(count)][-(count if is_wide else 1) :]
    model.graph.node.add(op_type="Sum", input=last, output=["y"])
    for name, ends in (("x", model.graph.input), ("y", model.graph.output)):
        ends.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 10**9]))
    started_s = time.process_time()
    spans, _ = cut_points(model, 1 << 30)
    assert spans[-1].stop == count + 1
    assert time.process_time() - started_s < 5


def test_bodies_nested_deeper_than_protobuf_reads_are_refused(tmp_path: Path) -> None:
    def varint(number: int) -> bytes:
        low, rest = number & 127, number >> 7
        return bytes([low | 128]) + varint(rest) if rest else bytes([low])

    def field(number: int, data: bytes) -> bytes:
        return varint(number << 3 | 2) + varint(len(data)) + data

    graph = b""
    for _ in range(2000):  # attribute 'then_branch' of a node of a graph, again and again
        attribute = field(1, b"then_branch") + field(6, graph) + b"\xa0\x01\x05"
        graph = field(1, field(4, b"If") + field(5, attribute))
    (tmp_path / "model.onnx").write_bytes(b"\x08\x09" + field(7, graph))
    with pytest.raises(InvalidModelError):
        refused(tmp_path / "model.onnx")
