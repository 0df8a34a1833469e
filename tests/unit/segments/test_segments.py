"""Models cut into segments answer as ONNX Runtime does, whatever they are made of."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from brisk.errors import InvalidModelError
from brisk.segments.frame import run_serially
from brisk.segments.model import cutting
from brisk.segments.model.cutting import NodeSpan, cut_points
from brisk.segments.model.extraction import extract, normalise
from brisk.segments.model.model_file import read_model_file
from brisk.segments.model.sources import BareModel
from brisk.segments.starting import start_segments
from support.models.segment_models import by_segments, chain, info, save, source_of, whole

pytestmark = pytest.mark.usefixtures("short_segments")

ROWS = np.random.default_rng(3).standard_normal((5, 512)).astype(np.float32)


def test_a_chain_is_cut_evenly_where_one_tensor_is_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = read_model_file(chain(tmp_path / "model.onnx"))
    spans, _ = cut_points(file.proto, 1 << 30, longest_ns=15_000)
    assert len(spans) >= 4
    assert (spans[0].start, spans[-1].stop) == (0, len(file.proto.graph.node))
    assert all(one.stop == two.start for one, two in pairwise(spans))
    assert max(span.predicted_ns for span in spans) < 2 * min(span.predicted_ns for span in spans)
    typed = onnx.shape_inference.infer_shapes(file.proto)
    for segment in extract(typed, spans)[:-1]:
        assert len(segment.spec.outputs) == 1


def test_segments_answer_as_one_session_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = chain(tmp_path / "model.onnx")
    expected = whole(path, {"x": ROWS})["y"]
    for longest_ns, count in ((1e12, 1), (15_000, 4)):
        monkeypatch.setattr(cutting, "LONGEST_SEGMENT_NS", longest_ns)
        source = source_of(path)
        assert len(source.segments) >= count
        for warm in (False, True):
            answers = by_segments(source, {"x": ROWS}, warm=warm)
            np.testing.assert_allclose(answers["y"], expected, rtol=1e-4, atol=1e-5)


def test_weights_are_read_where_the_file_has_them(tmp_path: Path) -> None:
    path = chain(tmp_path / "model.onnx")
    file = read_model_file(path)
    data = path.read_bytes()
    for tensor in file.proto.graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        offset, length = int(entries["offset"]), int(entries["length"])
        assert entries["location"] == "model.onnx"
        found = np.frombuffer(data[offset : offset + length], np.float32)
        expected = next(
            numpy_helper.to_array(each)
            for each in onnx.load(path).graph.initializer
            if each.name == tensor.name
        )
        np.testing.assert_array_equal(found, expected.ravel())
    assert file.proto.ByteSize() < 20_000


def test_weights_of_constant_nodes_are_read_where_the_file_has_them(tmp_path: Path) -> None:
    """Some exporters write no initialisers; a small constant stays a node."""
    weight = np.random.default_rng(3).standard_normal((512, 64)).astype(np.float32)
    nodes = [
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weight, "other")),
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Mul", ["a", "two"], ["y"]),
    ]
    path = save(tmp_path / "model.onnx", nodes, [info("x", "n", 512)], [info("y", "n", 64)])
    file = read_model_file(path)
    assert [node.op_type for node in file.proto.graph.node] == ["Constant", "MatMul", "Mul"]
    assert [tensor.name for tensor in file.proto.graph.initializer] == ["w"]
    np.testing.assert_array_equal(file.weights["w"].data.view(np.float32), weight.ravel())
    assert file.proto.ByteSize() < 1000
    np.testing.assert_array_equal(
        by_segments(source_of(path), {"x": ROWS}, warm=True)["y"], whole(path, {"x": ROWS})["y"]
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda node: setattr(node, "domain", "own"),
        lambda node: node.output.append("second"),
        lambda node: setattr(node.attribute[0], "name", "sparse_value"),
        lambda node: node.attribute.append(helper.make_attribute("more", 1)),
        lambda node: node.attribute[0].t.ClearField("raw_data"),
    ],
)
def test_what_is_no_constant_of_a_weight_stays_a_node(
    tmp_path: Path, change: Callable[[onnx.NodeProto], None]
) -> None:
    node = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(ROWS))
    change(node)
    node.doc_string = "long " * 1000
    add = helper.make_node("Add", ["x", "w"], ["y"])
    path = save(tmp_path / "model.onnx", [node, add], [info("x", 4, 512)], [info("y", 4, 512)])
    proto = read_model_file(path).proto
    assert list(proto.graph.node) == list(onnx.load(path).graph.node)
    assert not proto.graph.initializer


@pytest.mark.parametrize("is_here", [False, True])
@pytest.mark.parametrize(
    ("layers", "width", "most"), [(1, 128, 0), (12, 512, 1 << 19), (1, 2304, 16 << 20)]
)
def test_an_awaited_model_of_few_weights_starts_with_its_warm_sessions(
    tmp_path: Path, layers: int, width: int, most: int, is_here: bool
) -> None:
    path = chain(tmp_path / "model.onnx", layers, width)
    rows = np.resize(ROWS, (4, width))
    assert path.stat().st_size > most, "of what is to be found out"
    is_warm = most < 16 << 20 if is_here else not most
    source = BareModel(path, 2, is_awaited=True, is_here=is_here)
    source.check()
    starting = start_segments(source)
    first = run_serially(starting.program, {"x": rows})["y"]
    np.testing.assert_allclose(first, whole(path, {"x": rows})["y"], rtol=1e-4, atol=1e-5)
    before = [part.session for part in starting.table.current()]
    assert starting.load_warm(lambda: True)
    after = [part.session for part in starting.table.current()]
    assert (before == after) == is_warm


def test_an_awaited_model_with_branches_starts_in_place_since_they_may_be_large(
    tmp_path: Path,
) -> None:
    branches = {
        name: helper.make_graph(
            [helper.make_node(operator, ["x"], [name])], name, [], [info(name, 4)]
        )
        for name, operator in (("then", "Relu"), ("else", "Neg"))
    }
    attributes = {f"{name}_branch": branch for name, branch in branches.items()}
    node = helper.make_node("If", ["c"], ["y"], **attributes)
    choice = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    path = save(tmp_path / "model.onnx", [node], [choice, info("x", 4)], [info("y", 4)])
    source = BareModel(path, 2, is_awaited=True)
    source.check()
    source.open(0)
    assert source.open_warm(0) is not None


def test_what_onnx_runtime_refuses_of_an_awaited_model_is_told(tmp_path: Path) -> None:
    node = helper.make_node("Nonesuch", ["x"], ["y"], name="odd")
    path = save(tmp_path / "model.onnx", [node], [info("x", "n", 4)], [info("y", "n", 4)])
    with pytest.raises(InvalidModelError, match=r"segment 0 .*odd.*Nonesuch"):
        BareModel(path, 2, is_awaited=True).check()


@pytest.mark.parametrize("kept", [0, 1, 100, 2_000_000])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, kept: int) -> None:
    path = chain(tmp_path / "model.onnx")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InvalidModelError, match=r"model\.onnx"):
        source_of(path).check()


def test_a_model_that_was_read_needs_its_file_s_name_no_more(tmp_path: Path) -> None:
    path = chain(tmp_path / "model.onnx")
    file, expected = read_model_file(path), source_of(path).plan
    path.unlink()
    assert BareModel(path, 2, file=file).plan == expected


def test_constant_nodes_are_in_every_segment_that_reads_them(tmp_path: Path) -> None:
    constant = numpy_helper.from_array(np.full(512, 0.5, np.float32))
    nodes = [
        helper.make_node("Constant", [], ["half"], value=constant),
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        helper.make_node("Mul", ["x", "half"], ["a"]),
        helper.make_node("Abs", ["a"], ["b"]),
        helper.make_node("Mul", ["b", "half"], ["c"]),
        helper.make_node("Mul", ["c", "two"], ["y"]),
    ]
    path = save(tmp_path / "model.onnx", nodes, [info("x", "n", 512)], [info("y", "n", 512)])
    model = onnx.load(path)
    normalise(model)
    assert [node.op_type for node in model.graph.node] == ["Mul", "Abs", "Mul", "Mul"]
    typed = onnx.shape_inference.infer_shapes(model)
    first, second = extract(typed, [NodeSpan(0, 2, 0.0), NodeSpan(2, 4, 0.0)])
    assert (first.spec.inputs, first.spec.outputs, second.spec.inputs) == (("x",), ("b",), ("b",))
    assert {tensor.name for tensor in second.proto.graph.initializer} == {"half", "two"}
    answers = by_segments(source_of(path), {"x": ROWS})
    np.testing.assert_allclose(answers["y"], np.abs(ROWS * 0.5), rtol=1e-6)


def test_a_body_reads_values_of_segments_before_it(tmp_path: Path) -> None:
    def body(operator: str) -> onnx.GraphProto:
        node = helper.make_node(operator, ["a", "weight"], [f"{operator}_out"])
        return helper.make_graph([node], operator, [], [info(f"{operator}_out", "n", 512)])

    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Abs", ["x"], ["b"]),
        helper.make_node("ReduceSum", ["b"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "limit"], ["is_large"]),
        helper.make_node(
            "If", ["is_large"], ["y"], then_branch=body("Add"), else_branch=body("Sub")
        ),
    ]
    weights = {"weight": np.ones(512, np.float32), "limit": np.array(1.0, np.float32)}
    path = save(
        tmp_path / "model.onnx", nodes, [info("x", "n", 512)], [info("y", "n", 512)], weights
    )
    model = onnx.load(path)
    first, second = extract(
        onnx.shape_inference.infer_shapes(model), [NodeSpan(0, 3, 0.0), NodeSpan(3, 5, 0.0)]
    )
    assert set(second.spec.inputs) == {"a", "total"}
    assert {tensor.name for tensor in second.proto.graph.initializer} == {"weight", "limit"}
    assert {tensor.name for tensor in first.proto.graph.initializer} == set()
    for rows, sign in ((ROWS, 1.0), (0 * ROWS, -1.0)):
        answers = by_segments(source_of(path), {"x": rows})
        np.testing.assert_allclose(answers["y"], -rows + sign, rtol=1e-6)


def test_what_has_a_default_is_folded_as_constants_are(tmp_path: Path) -> None:
    """Old exporters list all weights as inputs: ONNX Runtime fuses nothing with those then."""
    channels = {name: np.full(8, value, np.float32) for name, value in zip("sbmv", (2, 1, 0, 4))}  # noqa: B905
    weight = np.ones((8, 3, 3, 3), np.float32)
    path = save(
        tmp_path / "model.onnx",
        [
            helper.make_node("Conv", ["x", "w"], ["c"]),
            helper.make_node("BatchNormalization", ["c", *"sbmv"], ["y"], epsilon=0.0),
        ],
        [info("x", 1, 3, 8, 8), info("w", 8, 3, 3, 3), *(info(name, 8) for name in "sbmv")],
        [info("y", 1, 8, 6, 6)],
        {"w": weight, **channels},
    )
    source = source_of(path)
    session = source.open_warm(0)
    assert session is not None
    assert [each.name for each in session.session.get_inputs()] == ["x"]
    image = np.ones((1, 3, 8, 8), np.float32)
    answer = by_segments(source, {"x": image})["y"]
    np.testing.assert_allclose(answer, np.full((1, 8, 6, 6), 28.0), rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (TensorProto.FLOAT, np.array([[1.5, -2.0]], np.float32)),
        (TensorProto.DOUBLE, np.array([[1.5, -2.0]], np.float64)),
        (TensorProto.FLOAT16, np.array([[1.5, -2.0]], np.float16)),
        (TensorProto.INT64, np.array([[2**40, -7]], np.int64)),
        (TensorProto.INT32, np.array([[5, -7]], np.int32)),
        (TensorProto.INT8, np.array([[5, -7]], np.int8)),
        (TensorProto.UINT8, np.array([[5, 200]], np.uint8)),
        (TensorProto.BOOL, np.array([[True, False]])),
        (TensorProto.STRING, np.array([["é", ""]], object)),
        (TensorProto.FLOAT, np.zeros((0, 2), np.float32)),
    ],
)
def test_every_datatype_crosses_segments(tmp_path: Path, kind: int, values: np.ndarray) -> None:
    path = save(
        tmp_path / "model.onnx",
        [
            helper.make_node("Identity", ["x"], ["a"]),
            helper.make_node("Identity", ["a"], ["b"]),
            helper.make_node("Identity", ["b"], ["y"]),
        ],
        [info("x", "n", 2, kind=kind)],
        [info("y", "n", 2, kind=kind)],
    )
    answers = by_segments(source_of(path), {"x": values})
    assert answers["y"].dtype == values.dtype
    np.testing.assert_array_equal(answers["y"], values)


def test_a_warm_model_maps_its_file_no_more(tmp_path: Path) -> None:
    """Its sessions have copies: pages of the file would be held twice."""
    path = chain(tmp_path / "model.onnx")
    source = source_of(path)
    starting = start_segments(source)
    starting.table.work("test")
    inputs = {"x": np.ones((2, 512), "f4")}
    first = run_serially(starting.program, inputs)
    assert _maps(path)
    assert starting.load_warm(lambda: True)
    assert not _maps(path)
    again = run_serially(starting.program, inputs)
    np.testing.assert_allclose(again["y"], first["y"], rtol=1e-4, atol=1e-5)


def _maps(path: Path) -> bool:
    gc.collect()
    return str(path) in Path("/proc/self/maps").read_text()
